//! Random operations through the whole stack, compared with a model that is called directly.

use dunlin_kv::client::{ClientConfig, KvError};
use dunlin_store::{Condition, Delta, Model, Put, Refused, Side, Store};
use proptest::prelude::*;

use crate::world::{Client, World};

#[derive(Debug, Clone)]
enum Step {
    Get,
    Read { touch: Option<Option<u32>> },
    Put { len: u16, flags: u32, expires: Option<u32>, condition: u8 },
    Delete { with_token: bool },
    Extend { len: u16, side: Side, with_token: bool },
    Number { value: u64 },
    Count { delta: Delta, with_token: bool },
    Touch { expires: Option<u32> },
    MultiGet,
    Wait { seconds: u32 },
    Flush,
}

fn time() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (1000..1200u32).prop_map(Some)]
}

fn step() -> impl Strategy<Value = Step> {
    let side = prop_oneof![Just(Side::End), Just(Side::Start)];
    let delta = prop_oneof![any::<u64>().prop_map(Delta::Up), (0..50u64).prop_map(Delta::Down)];
    let flags = prop_oneof![Just(0), any::<u32>()];
    prop_oneof![
        8 => Just(Step::Get),
        2 => prop_oneof![Just(None), time().prop_map(Some)].prop_map(|touch| Step::Read { touch }),
        8 => (0..3000u16, flags, time(), 0..5u8)
            .prop_map(|(len, flags, expires, condition)| Step::Put { len, flags, expires, condition }),
        2 => any::<bool>().prop_map(|with_token| Step::Delete { with_token }),
        2 => (0..2000u16, side, any::<bool>()).prop_map(|(len, side, with_token)| Step::Extend { len, side, with_token }),
        2 => (0..100u64).prop_map(|value| Step::Number { value }),
        2 => (delta, any::<bool>()).prop_map(|(delta, with_token)| Step::Count { delta, with_token }),
        2 => time().prop_map(|expires| Step::Touch { expires }),
        2 => Just(Step::MultiGet),
        1 => (1..30u32).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Flush),
    ]
}

/// Tokens differ on the two sides, so each side has its own; they are compared by their effect.
#[derive(Default, Clone, Copy)]
struct Tokens {
    real: u64,
    model: u64,
}

struct Pair<'w> {
    world: &'w World,
    client: Client,
    model: Model,
    tokens: [Tokens; 6],
    now: u32,
}

/// Returns the comparable part of a change's result, and its token.
fn outcome<R>(result: Result<R, KvError>) -> Result<R, Refused> {
    result.map_err(|error| match error {
        KvError::Refused(refused) => refused,
        error => panic!("failed: {error}"),
    })
}

impl Pair<'_> {
    fn note(&mut self, slot: usize, real: Result<u64, Refused>, model: Result<u64, Refused>) {
        match (real, model) {
            (Ok(real), Ok(model)) => self.tokens[slot] = Tokens { real, model },
            (real, model) => assert_eq!(real, model),
        }
    }

    fn run(&mut self, slot: usize, step: &Step) {
        let key_bytes = format!("key-{slot}");
        let bytes = key_bytes.as_bytes();
        let key = self.model.key(bytes).unwrap();
        let (client, world, tokens) = (self.client.clone(), self.world, self.tokens[slot]);
        let token = |with: bool| (with.then_some(tokens.real), with.then_some(tokens.model));
        match *step {
            Step::Get => {
                let real = world.run(client.get(bytes)).unwrap();
                let model = self.model.get(&key);
                assert_eq!(real.as_deref(), model.map(|item| item.value));
                assert_eq!(real.map(|value| value.flags()), model.map(|item| item.flags));
            }
            Step::Read { touch } => {
                let real = world.run(async {
                    match touch {
                        None => client.read(bytes).await,
                        Some(expires) => client.read_and_touch(bytes, expires).await,
                    }
                });
                if let Some(expires) = touch {
                    // If the item does not exist, neither side does anything.
                    let _ = self.model.touch(&key, expires);
                }
                let model = self.model.get(&key);
                let model =
                    model.map(|item| (item.flags, item.expires, item.last_access, item.marks, item.value.to_vec()));
                let real = real
                    .unwrap()
                    .map(|(facts, value)| (facts.flags, facts.expires, facts.last_access, facts.marks, value.to_vec()));
                assert_eq!(real, model);
            }
            Step::Put { len, flags, expires, condition } => {
                let value = vec![len as u8; usize::from(len)];
                let put = |token| {
                    let condition = match condition {
                        0 => Condition::Absent,
                        1 => Condition::Present,
                        2 => Condition::Unchanged(token),
                        _ => Condition::Always,
                    };
                    Put { flags, expires, condition, ..Put::default() }
                };
                let real = outcome(world.run(client.put(bytes, &value, put(tokens.real)))).map(|stored| stored.cas);
                let model = self.model.put(&key, &value, put(tokens.model)).map(|stored| stored.cas);
                self.note(slot, real, model);
            }
            Step::Delete { with_token } => {
                let (real, model) = token(with_token);
                let real = outcome(world.run(client.delete_unchanged(bytes, real)));
                assert_eq!(real, self.model.delete(&key, model));
            }
            Step::Extend { len, side, with_token } => {
                let (real, model) = token(with_token);
                let more = vec![len as u8; usize::from(len)];
                let real = outcome(world.run(client.extend(bytes, &more, side, real))).map(|stored| stored.cas);
                let model = self.model.extend(&key, &more, side, model).map(|stored| stored.cas);
                self.note(slot, real, model);
            }
            Step::Number { value } => {
                let text = value.to_string();
                let real = outcome(world.run(client.set(bytes, text.as_bytes()))).map(|stored| stored.cas);
                let model = self.model.put(&key, text.as_bytes(), Put::default()).map(|stored| stored.cas);
                self.note(slot, real, model);
            }
            Step::Count { delta, with_token } => {
                let (real, model) = token(with_token);
                let real = outcome(world.run(client.count(bytes, delta, real)));
                let model = self.model.count(&key, delta, model);
                assert_eq!(real.as_ref().ok().map(|number| number.value), model.as_ref().ok().map(|(value, _)| *value));
                self.note(slot, real.map(|number| number.cas), model.map(|(_, stored)| stored.cas));
            }
            Step::Touch { expires } => {
                let real = world.run(client.touch(bytes, expires)).unwrap();
                assert_eq!(real, self.model.touch(&key, expires).is_ok());
            }
            Step::MultiGet => {
                let keys: Vec<String> = (0..8).map(|slot| format!("key-{slot}")).collect();
                let values = world.run(client.multi_get(&keys)).unwrap();
                for (key, value) in keys.iter().zip(values) {
                    let key = self.model.key(key.as_bytes()).unwrap();
                    assert_eq!(value.as_deref(), self.model.get(&key).map(|item| item.value));
                }
            }
            Step::Wait { seconds } => {
                self.now += seconds;
                world.set_now(self.now);
                self.model.set_now(self.now);
            }
            Step::Flush => {
                world.run(client.flush()).unwrap();
                self.model.flush();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_service_does_what_its_store_does(cores in 1..4u16, steps in prop::collection::vec((0..6usize, step()), 1..120)) {
        let world = World::new(cores);
        let client = world.connect(ClientConfig::default());
        world.set_now(1000);
        let mut model = Model::new();
        model.set_now(1000);
        let mut pair = Pair { world: &world, client, model, tokens: Default::default(), now: 1000 };
        for (slot, step) in &steps {
            pair.run(*slot, step);
        }
        for core in &world.cores {
            prop_assert_eq!(core.shard.strays.get().not_owned, 0);
        }
    }
}
