//! Guarantees of queues under overload, with every order: no starvation, fair shares, bounded memory.

use dunlin_schedule::{Ageing, DEMOTED_ONE_IN, Damping, Levels, Opsets, Order, Policy, QueueConfig, RequestQueue, Tag};

const AGEING: Ageing = Ageing { after: 200, one_in: 8 };

fn queue<T>(order: Order, damping: Option<Damping>, limit: usize) -> RequestQueue<T> {
    RequestQueue::new(&QueueConfig { order, damping, limit }).expect("a valid queue")
}

fn orders() -> [Order; 4] {
    [
        Order::Fifo,
        Order::Exact { ageing: Some(AGEING) },
        Order::Weighted { weights: vec![4, 3, 2, 1] },
        Order::Learnt { levels: 4, ageing: Some(AGEING) },
    ]
}

fn tag(rank: u64) -> Tag {
    Tag { rank, cost: 1, client: 1 }
}

/// Small requests come faster than they can be served, and one large one waits among them.
#[test]
fn the_largest_request_does_not_starve_under_overload() {
    for order in orders() {
        let mut queue = queue(order.clone(), None, 1_000_000);
        for turn in 0..1000 {
            queue.push(tag(turn % 3), false).unwrap();
        }
        let waiting = queue.len() as u64;
        queue.push(tag(u64::MAX), true).unwrap();
        let mut served = 0;
        loop {
            served += 1;
            queue.push(tag(served % 3), false).unwrap();
            queue.push(tag(0), false).unwrap();
            if queue.pop() == Some(true) {
                break;
            }
            let bound = AGEING.after + u64::from(AGEING.one_in) * (waiting + 1);
            assert!(served <= bound, "{order:?}: not served among {served}");
        }
    }
}

/// It waits in a middle level, and later ones wait in the last level. Among those that came while nothing was served,
/// it is the oldest.
#[test]
fn ageing_takes_the_oldest_of_those_that_came_together() {
    for order in [Order::Exact { ageing: Some(AGEING) }, Order::Learnt { levels: 8, ageing: Some(AGEING) }] {
        let mut queue = queue(order.clone(), None, 1_000_000);
        // Eight sizes with the same amount of work: a level for each.
        for turn in 0..20_000 {
            queue.push(tag(turn % 8), false).unwrap();
            queue.pop();
        }
        let waiting = queue.len() as u64;
        queue.push(tag(5), true).unwrap();
        (0..1000).for_each(|_| _ = queue.push(tag(7), false).unwrap());
        let bound = AGEING.after + u64::from(AGEING.one_in) * (waiting + 1);
        let is_served = (0..bound).any(|_| {
            queue.push(tag(0), false).unwrap();
            queue.push(tag(0), false).unwrap();
            queue.pop() == Some(true)
        });
        assert!(is_served, "{order:?}: not served among {bound}");
    }
}

/// Without ageing, it waits as long as smaller ones come.
#[test]
fn without_ageing_exact_ranks_starve() {
    for order in [Order::Exact { ageing: None }, Order::Learnt { levels: 4, ageing: None }] {
        let mut queue = queue(order, None, 10);
        for _ in 0..5000 {
            queue.push(tag(1), false).unwrap();
            queue.push(tag(2000), false).unwrap();
            queue.pop();
            queue.pop();
        }
        queue.push(tag(2000), true).unwrap();
        for _ in 0..5000 {
            queue.push(tag(1), false).unwrap();
            assert_eq!(queue.pop(), Some(false));
        }
    }
}

#[test]
fn overload_with_ageing_still_prefers_small_requests() {
    for order in [Order::Exact { ageing: Some(AGEING) }, Order::Learnt { levels: 4, ageing: Some(AGEING) }] {
        let mut queue = queue(order, None, 1_000_000);
        let (mut small, mut all) = (0, 0);
        for _ in 0..20_000 {
            queue.push(tag(1), true).unwrap();
            queue.push(tag(1000), false).unwrap();
            small += u32::from(queue.pop() == Some(true));
            all += 1;
        }
        // All except the turns of the old ones.
        assert!(small > all - all / AGEING.one_in - 200, "{small} of {all}");
    }
}

#[test]
fn equal_ranks_keep_their_order() {
    for order in orders() {
        let mut queue = queue(order.clone(), None, 100);
        (0..100).for_each(|number| assert_eq!(queue.push(tag(5), number), Ok(None)));
        let served: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        // Thresholds are being learnt meanwhile: only the first few may precede the rest, and they came before it.
        assert_eq!(served, (0..100).collect::<Vec<_>>(), "{order:?}");
    }
}

#[test]
fn exact_order_is_exact() {
    let mut queue = queue(Order::Exact { ageing: None }, None, 1000);
    let ranks = [7, 0, u64::MAX, 3, 7, 1, u64::MAX - 1];
    ranks.into_iter().for_each(|rank| assert_eq!(queue.push(tag(rank), rank), Ok(None)));
    assert!(std::iter::from_fn(|| queue.pop()).is_sorted());
}

#[test]
fn weights_are_kept_while_all_levels_wait() {
    let mut queue = queue(Order::Weighted { weights: vec![4, 3, 2, 1] }, None, 1_000_000);
    // Ranks beyond the last level are the last level.
    for rank in [0, 1, 2, u64::MAX] {
        (0..1000).for_each(|_| _ = queue.push(tag(rank), rank.min(3) as usize).unwrap());
    }
    assert_eq!(queue.lengths(), [1000, 1000, 1000, 1000, 0]);
    let mut served = [0; 4];
    (0..1000).for_each(|_| served[queue.pop().unwrap()] += 1);
    assert_eq!(served, [400, 300, 200, 100]);
}

#[test]
fn weights_are_of_cost() {
    let mut queue = queue(Order::Weighted { weights: vec![4, 3, 2, 1] }, None, 1_000_000);
    for turn in 0..20_000u32 {
        let (rank, cost) = (u64::from(turn % 4), VARIED(u64::from(turn % 4), turn / 4));
        queue.push(Tag { rank, cost, client: 1 }, (rank as usize, u64::from(cost))).unwrap();
    }
    let (mut served, mut all) = ([0; 4], 0);
    while all < 50_000 {
        let (level, cost) = queue.pop().unwrap();
        (served[level], all) = (served[level] + cost, all + cost);
    }
    for (level, served) in served.into_iter().enumerate() {
        let share = all * (4 - level as u64) / 10;
        assert!(served.abs_diff(share) <= 2 * 66 * 4, "level {level}: {served} of {share}");
    }
}

/// Nobody waits for them: neither they nor their costs take turns from others.
#[test]
fn what_is_over_costs_its_level_nothing() {
    let mut queue = queue(Order::Weighted { weights: vec![4, 3, 2, 1] }, None, 1_000_000);
    for rank in 0..4u64 {
        for turn in 0..1000 {
            queue.push(Tag { rank, cost: 1, client: 1 }, (rank as usize, false)).unwrap();
            if rank == 0 && turn % 100 == 0 {
                queue.push(Tag { rank, cost: u32::MAX, client: 1 }, (rank as usize, true)).unwrap();
            }
        }
    }
    let mut served = [0; 4];
    (0..1000).for_each(|_| served[queue.pop_unless(|(_, is_over)| *is_over).unwrap().0] += 1);
    assert_eq!(served, [400, 300, 200, 100]);
}

#[test]
fn a_full_queue_gives_the_operation_back() {
    for order in orders() {
        let mut queue = queue(order, None, 2);
        assert_eq!((queue.push(tag(9), 'a'), queue.push(tag(9), 'b')), (Ok(None), Ok(None)));
        let full = queue.push(tag(0), 'c').unwrap_err();
        assert_eq!((full.item, full.limit, queue.len()), ('c', 2, 2));
        assert!(full.to_string().contains("repeat it later"));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some('a'), Some('b'), None));
    }
}

/// Operations that are over cost no service, and do not delay others.
#[test]
fn what_is_over_is_dropped_when_it_would_be_next() {
    for order in orders() {
        let mut queue = queue(order.clone(), Some(Damping { burst: 4 }), 100);
        (0..100)
            .for_each(|number| assert_eq!(queue.push(Tag { rank: 5, cost: 1, client: number % 2 }, number), Ok(None)));
        let served: Vec<u64> = std::iter::from_fn(|| queue.pop_unless(|number| number % 10 != 3)).collect();
        let (mut sorted, expected) = (served.clone(), (0..10).map(|ten| 10 * ten + 3).collect::<Vec<_>>());
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{order:?}: {served:?}");
        assert!(queue.is_empty());
    }
}

const CLIENTS: u64 = 8;
const LIAR: u64 = 0;

/// What the operations of a client cost.
type Costs = fn(client: u64, turn: u32) -> u32;

/// As a server that counts says.
const ONE: Costs = |_, _| 1;
/// As a server says that charges for bytes.
const VARIED: Costs = |client, turn| 1 + (turn.wrapping_mul(2_654_435_769) >> 8).wrapping_add(client as u32) % 65;
/// Some of the liar's operations cost as much as can be said, while it is in debt.
const HUGE: Costs = |client, turn| if client == LIAR && turn % 4 == 3 { u32::MAX } else { 1 };

/// The share of the service that a client gets which sends as much as all others together, marks everything as urgent,
/// and whose operations come first whenever there is room. The others exceed the capacity, too. Service is `of_cost`.
fn share_of_liar(order: Order, damping: Option<Damping>, limit: usize, costs: Costs, of_cost: fn(u32) -> u32) -> f64 {
    let mut queue = queue(order, damping, limit);
    let (mut of_liar, mut all) = (0, 0);
    for turn in 0..40_000u32 {
        let mut push = |rank, client, cost| _ = queue.push(Tag { rank, cost, client }, (client, cost));
        (1..CLIENTS).for_each(|number| push(0, LIAR, costs(LIAR, turn + number as u32)));
        for client in 1..CLIENTS {
            push([1, 2, 5, 40][(u64::from(turn) + client) as usize % 4], client, costs(client, turn));
        }
        for _ in 0..CLIENTS / 2 {
            let (client, cost) = queue.pop().expect("more comes than is served");
            // The queue fills up first.
            if turn > 10_000 {
                let service = u64::from(of_cost(cost));
                of_liar += if client == LIAR { service } else { 0 };
                all += service;
            }
        }
    }
    of_liar as f64 / all as f64
}

#[test]
fn a_client_that_calls_everything_urgent_gets_its_fair_share() {
    let fair = 1.0 / CLIENTS as f64;
    for (order, costs) in orders().into_iter().flat_map(|order| [(order.clone(), ONE), (order, VARIED)]) {
        let damped = share_of_liar(order.clone(), Some(Damping { burst: 64 }), 4096, costs, |cost| cost);
        // Operations above the shares have their turns.
        let turns = 1.0 / DEMOTED_ONE_IN as f64;
        assert!(damped <= fair + turns + 0.01, "{order:?}: {damped:.3} of the service, {fair:.3} is fair");
        assert!(damped >= fair * 0.9, "{order:?}: {damped:.3} of the service: honest or not, it has its share");
    }
    // Its share without damping.
    let undamped = share_of_liar(Order::Exact { ageing: None }, None, 4096, ONE, |cost| cost);
    assert!(undamped > 0.9, "{undamped:.3}");
}

/// What they cost pays nobody's debts, its own least of all.
#[test]
fn a_client_whose_operations_cost_very_much_is_not_served_more_of_them() {
    let fair = 1.0 / CLIENTS as f64 + 1.0 / DEMOTED_ONE_IN as f64;
    for order in orders() {
        let damped = share_of_liar(order.clone(), Some(Damping { burst: 64 }), 1 << 20, HUGE, |_| 1);
        assert!(damped <= fair + 0.01, "{order:?}: {damped:.3} of the operations, {fair:.3} is fair");
    }
}

/// The operations above a share get one part in 16 of the service, not one operation in 16.
#[test]
fn what_is_above_its_share_and_costs_much_has_few_turns() {
    for order in orders() {
        let mut queue = queue(order.clone(), Some(Damping { burst: 1 }), 10_000);
        let mut push = |client, cost| _ = queue.push(Tag { rank: 1, cost, client }, (client, cost)).unwrap();
        (0..1000).for_each(|_| push(LIAR, 64));
        (1..=4000).for_each(|client| push(client, 1));
        let served: Vec<u32> = (0..4000).filter_map(|_| queue.pop()).map(|(_, cost)| cost).collect();
        let (all, dear) = (served.iter().sum::<u32>(), served.iter().filter(|cost| **cost > 1).sum::<u32>());
        let bound = all / DEMOTED_ONE_IN as u32 + 2 * 64;
        assert!(dear > 64 && dear <= bound, "{order:?}: {dear} of {all}, {bound} at most");
    }
}

/// A lead is not forgotten when the queue runs empty: of a client's continuous load, only its share of the service
/// comes before the operations of others.
#[test]
fn an_empty_queue_forgives_nothing() {
    const PERIODS: u32 = 100;
    const BURST: u32 = 32;
    const HONEST: u32 = 5;
    for order in orders().into_iter().filter(|order| *order != Order::Fifo) {
        let mut queue = queue(order.clone(), Some(Damping { burst: BURST }), 4096);
        let (mut ahead, mut all) = (0, 0);
        for _ in 0..PERIODS {
            (0..BURST).for_each(|_| _ = queue.push(Tag { rank: 0, cost: 1, client: LIAR }, LIAR).unwrap());
            for _ in 0..HONEST {
                (1..CLIENTS).for_each(|client| _ = queue.push(Tag { rank: 3, cost: 1, client }, client).unwrap());
            }
            let served: Vec<u64> = std::iter::from_fn(|| queue.pop()).collect();
            let last = served.iter().rposition(|client| *client != LIAR).expect("the others ask too");
            ahead += served[..last].iter().filter(|client| **client == LIAR).count() as u64;
            all += served.len() as u64;
        }
        let bound = all / CLIENTS + all / DEMOTED_ONE_IN + u64::from(BURST);
        assert!(ahead <= bound, "{order:?}: {ahead} of {all} ahead of others, {bound} at most");
    }
}

#[test]
fn a_share_that_nobody_else_wants_is_not_withheld() {
    let mut queue = queue(Order::default(), Some(Damping { burst: 4 }), 1000);
    (0..1000).for_each(|number| assert_eq!(queue.push(tag(1), number), Ok(None)));
    assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 1000);
    assert!(queue.is_empty());
}

#[test]
fn what_is_above_its_share_makes_room_in_a_full_queue() {
    let mut queue = queue(Order::default(), Some(Damping { burst: 4 }), 10);
    (0..10).for_each(|number| assert_eq!(queue.push(Tag { rank: 0, cost: 1, client: LIAR }, number), Ok(None)));
    assert_eq!(queue.push(Tag { rank: 0, cost: 1, client: LIAR }, 10).unwrap_err().item, 10);
    let large = Tag { rank: 2000, cost: 1, client: 1 };
    assert_eq!([100, 101].map(|number| queue.push(large, number)), [Ok(Some(9)), Ok(Some(8))]);
    let served: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(served.len(), 10);
    assert!(served.iter().position(|number| *number == 100) < served.iter().position(|number| *number == 5));
}

/// The client furthest above its share loses an operation, not the one that came last.
#[test]
fn the_client_furthest_above_its_share_makes_room() {
    let mut queue = queue(Order::default(), Some(Damping { burst: 1 }), 10);
    let mut push = |client: u64| queue.push(Tag { rank: 0, cost: 1, client }, client);
    // Eight of the liar, seven of which are above its share; two of another client, one of them above.
    (0..8).for_each(|_| assert_eq!(push(LIAR), Ok(None)));
    (0..2).for_each(|_| assert_eq!(push(1), Ok(None)));
    assert_eq!(push(2), Ok(Some(LIAR)), "within its share");
    assert_eq!(push(1), Ok(Some(LIAR)), "above its share, and less so than the liar");
    assert!(push(LIAR).is_err(), "above its share, more than any other");
    assert_eq!(queue.len(), 10);
}

/// The example of the thesis (Figure 3.2): R1 reads A from server 1 and B, C from server 2; R2 reads D from server 3
/// and E from server 1. An operation takes one unit of time.
#[test]
fn the_worked_example_of_the_thesis() {
    let mean = |policy: Policy, order: Order| {
        let mut servers: Vec<RequestQueue<usize>> = (0..3).map(|_| queue(order.clone(), None, 10)).collect();
        for (request, partitions) in [[0, 1, 1].as_slice(), &[2, 0]].into_iter().enumerate() {
            let mut multiget = Opsets::new(3);
            partitions.iter().for_each(|partition| _ = multiget.add(*partition, 1));
            multiget.rank(&policy);
            for opset in multiget.as_slice() {
                let tag = Tag { rank: opset.rank, cost: 1, client: request as u64 };
                (0..opset.ops).for_each(|_| _ = servers[opset.partition as usize].push(tag, request).unwrap());
            }
        }
        let mut done = [0, 0];
        for time in 1..=3 {
            servers.iter_mut().filter_map(RequestQueue::pop).for_each(|request| done[request] = time);
        }
        f64::from(done[0] + done[1]) / 2.0
    };
    let exact = Order::Exact { ageing: None };
    let levels = Levels::default();
    assert_eq!(mean(Policy::Fifo, Order::Fifo), 2.0);
    assert_eq!(mean(Policy::ShortestBottleneck, exact.clone()), 1.5);
    assert_eq!(mean(Policy::SlackDriven(Default::default()), exact.clone()), 1.5);
    assert_eq!(mean(Policy::ShortestTotal, exact), 1.5);
    let weighted = Order::Weighted { weights: levels.weights().to_vec() };
    assert_eq!(mean(Policy::MlqSlackDriven(levels.clone()), weighted.clone()), 1.5);
    assert_eq!(mean(Policy::Rein(levels), weighted), 1.5);
}
