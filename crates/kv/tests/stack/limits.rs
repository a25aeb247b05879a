//! Values and keys at each limit, and one past it.

use dunlin_kv::client::{ClientConfig, KvError, Outcome};
use dunlin_kv::wire::{MULTI_GET, OPERATE, Status};
use dunlin_net::Addr;
use dunlin_store::{KEY_BYTES_MAX, Mode, Partition, PartitionConfig, Refused, VALUE_BYTES_MAX};

use crate::world::{SERVER, World};

#[test]
fn keys_and_values_at_their_limits() {
    let world = World::new(2);
    let client = world.connect(ClientConfig::default());
    world.run(async {
        let key = vec![0xff; KEY_BYTES_MAX];
        let value: Vec<u8> = (0..VALUE_BYTES_MAX).map(|i| (i % 251) as u8).collect();
        client.set(&key, &value).await.unwrap();
        assert!(client.get(&key).await.unwrap().unwrap()[..] == value[..]);
        client.set(&[0], b"").await.unwrap();
        assert_eq!(client.get(&[0]).await.unwrap().as_deref(), Some(&b""[..]));

        let error = client.set(&key, &vec![0; VALUE_BYTES_MAX + 1]).await.unwrap_err();
        assert!(matches!(error, KvError::ValueTooLarge { .. }));
        let error = client.append(&key, b"!").await.unwrap_err();
        assert!(
            matches!(error, KvError::Refused(dunlin_store::Refused::TooLarge { len: 1_048_577, max: 1_048_576 })),
            "{error}"
        );
        for key in [&[][..], &[0; KEY_BYTES_MAX + 1]] {
            let error = client.get(key).await.unwrap_err();
            assert!(matches!(error, KvError::Key(_)));
            assert_eq!(error.outcome(), Outcome::NotExecuted);
            assert!(matches!(client.multi_get(&[b"ok", key]).await, Err(KvError::Key(_))));
        }
    });
}

#[test]
fn a_multi_get_of_more_than_fits_is_asked_again() {
    let world = World::new(1);
    let client = world.connect(ClientConfig::default());
    world.run(async {
        let value = |i: u8| vec![i; VALUE_BYTES_MAX - usize::from(i)];
        let keys: Vec<[u8; 1]> = (0..7).map(|i| [i]).collect();
        for key in &keys {
            client.set(key, &value(key[0])).await.unwrap();
        }
        let values = client.multi_get(&keys).await.unwrap();
        for (key, found) in keys.iter().zip(values) {
            assert!(found.unwrap()[..] == value(key[0])[..]);
        }
    });
    // More keys than one request may have.
    let keys: Vec<[u8; 4]> = (0..2500u32).map(u32::to_be_bytes).collect();
    assert_eq!(world.run(client.multi_get(&keys)).unwrap().iter().flatten().count(), 0);
}

#[test]
fn a_full_store_refuses_what_it_has_no_memory_for() {
    let world = World::with_stores(1, || {
        Partition::with_secret(PartitionConfig::new(Mode::Store, 1 << 20), [1, 2]).expect("1 MiB")
    });
    let client = world.connect(ClientConfig::default());
    // Key and value fill a line of the index, which then has no room for an expiry.
    let (key, value) = (|number: u32| format!("{number:016}"), [5; 36]);
    let is_full = |error: &KvError| matches!(error, KvError::Refused(Refused::Full));
    world.run(async {
        let mut items = 0;
        let error = loop {
            match client.set(key(items).as_bytes(), &value).await {
                Ok(_) => items += 1,
                Err(error) => break error,
            }
        };
        assert!(is_full(&error), "{error}");
        let mut untouched = Vec::new();
        for number in 0..items {
            match client.touch(key(number).as_bytes(), Some(5000)).await {
                Ok(is_there) => assert!(is_there, "item {number} is there"),
                Err(error) if is_full(&error) => untouched.push(key(number)),
                Err(error) => panic!("item {number}: {error}"),
            }
        }
        assert!(untouched.len() > 100, "{} of {items} are not touched", untouched.len());
        let key = untouched[0].as_bytes();
        let error = client.read_and_touch(key, Some(5000)).await.unwrap_err();
        assert!(is_full(&error) && error.outcome() == Outcome::NotExecuted, "{error}");
        let (item, _) = client.read(key).await.unwrap().expect("it is there");
        assert_eq!(item.expires, None);
        assert!(!client.touch(b"none", Some(5000)).await.unwrap());
        assert!(client.read_and_touch(b"none", Some(5000)).await.unwrap().is_none());
    });
}

#[test]
fn bad_requests_change_nothing_and_are_answered() {
    let world = World::new(2);
    let session = world.run(world.client.connect(&Addr::Node(SERVER))).unwrap();
    let status = |req_type: u8, request: &[u8]| {
        let reply = world.run(session.call(req_type, request.to_vec())).unwrap();
        (Status::of(&reply.response).unwrap(), reply.response.len())
    };
    let too_long = [&[0][..], &[b'k'; KEY_BYTES_MAX + 1]].concat();
    for request in [&[][..], &[0], &[7, 0, b'k'], &[2, 0xff, 1, b'k'], &[2, 0, 2, b'k'], &too_long] {
        assert_eq!(status(OPERATE, request), (Status::Malformed, 1), "{request:?}");
    }
    for request in [&[][..], &[3, b'k'], &[1; 2 * 1025]] {
        assert_eq!(status(MULTI_GET, request), (Status::Malformed, 1), "{request:?}");
    }
    let shard = &world.cores[0].shard;
    assert_eq!(shard.strays.get().malformed, 9);
    let foreign = (0..255u8).find(|byte| !shard.owns(&[*byte])).unwrap();
    assert_eq!(status(OPERATE, &[2, 0, 1, foreign, b'v']), (Status::NotOwned, 1));
    assert_eq!(dunlin_store::Store::stats(&*shard.store.borrow()).stored, 0);
}
