//! The index service and its client, over loopback on fake time.

mod hostile;
mod model;
mod net;

use std::time::{Duration, Instant};

use dunlin_index::wire::{
    COUNT, COUNT_BYTES_MAX, COUNT_PAGE, Code, Counted, DELETE_BYTES_MAX, DELETE_PAGE, DELETE_RANGE, LONG_PAGE, OPERATE,
    Operation, Page, PageLimits, SCAN, SHORT_PAGE, ScanRequest,
};
use dunlin_index::{
    ClientConfig, Gap, Index, IndexError, IndexService, KEY_BYTES_MAX, Order, Range, SharedIndex, VALUE_BYTES_MAX,
};
use dunlin_net::Addr;
use dunlin_rpc::{CallError, WorkerPool};
use dunlin_serve::channel::{Retry, Why};
use futures::future::join_all;

use self::net::{Net, QUEUE, TestClient, numbered, shared};

/// The numbers of a scan, as [`numbered`] stored them.
async fn numbers(client: &TestClient, range: Range<'_>, order: Order, limits: PageLimits) -> (Vec<u64>, usize) {
    let (mut numbers, mut count) = (Vec::new(), 0);
    let mut pages = client.scan_with(range, order, limits).unwrap();
    while let Some(page) = pages.next().await.unwrap() {
        for (key, value) in page.items() {
            let number = u64::from_be_bytes(key.try_into().unwrap());
            assert_eq!(value, number.to_le_bytes());
            numbers.push(number);
        }
        count += 1;
    }
    (numbers, count)
}

#[test]
fn items_of_all_lengths_are_stored_read_and_removed() {
    let (net, shared) = (Net::new(), shared(1));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    let (long_key, long_value) = (vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX]);
    let items: [(&[u8], &[u8]); 4] =
        [(b"", b""), (b"dunlin", b"Calidris alpina"), (b"x", b""), (&long_key, &long_value)];
    net.run(async {
        for (key, value) in items {
            assert!(client.get(key).await.unwrap().is_none());
            assert!(!client.put(key, value).await.unwrap());
            assert!(client.put(key, value).await.unwrap());
            assert_eq!(client.get(key).await.unwrap().as_deref(), Some(value));
        }
        for order in [Order::Ascending, Order::Descending] {
            for limits in [SHORT_PAGE, LONG_PAGE, PageLimits { items: 1, bytes: 1 }] {
                let (mut pages, mut found) = (client.scan_with(Range::ALL, order, limits).unwrap(), Vec::new());
                while let Some(page) = pages.next().await.unwrap() {
                    found.extend(page.items().map(|(key, value)| (key.to_vec(), value.to_vec())));
                }
                let mut expected = [items[0], items[3], items[1], items[2]].map(|(k, v)| (k.to_vec(), v.to_vec()));
                if order == Order::Descending {
                    expected.reverse();
                }
                assert!(found == expected, "{order:?} {limits:?}");
            }
        }
        for (key, _) in items {
            assert!(client.delete(key).await.unwrap());
            assert!(!client.delete(key).await.unwrap());
        }
        let (key, value) = (vec![1; KEY_BYTES_MAX + 1], vec![2; VALUE_BYTES_MAX + 1]);
        assert!(matches!(client.get(&key).await, Err(IndexError::TooLong(_))));
        assert!(matches!(client.put(&key, b"").await, Err(IndexError::TooLong(_))));
        assert!(matches!(client.put(b"", &value).await, Err(IndexError::TooLong(_))));
        assert!(matches!(client.delete(&key).await, Err(IndexError::TooLong(_))));
        assert!(matches!(client.scan(Range::from(&key), Order::Ascending), Err(IndexError::TooLong(_))));
        assert!(matches!(client.scan(Range::between(b"b", b"a"), Order::Ascending), Err(IndexError::Reversed)));
        let limits = PageLimits { items: LONG_PAGE.items + 1, bytes: 1 };
        assert!(matches!(
            client.scan_with(Range::ALL, Order::Ascending, limits),
            Err(IndexError::PageLimits { items: 16_385, bytes: 1 })
        ));
    });
    assert!(shared.index().is_empty());
    assert_eq!((service.stats().puts, service.stats().deletes, service.stats().bad), (8, 8, 0));
}

/// A session carries eight requests at once: one burst, one look-up.
#[test]
fn gets_that_arrive_together_are_looked_up_together() {
    let (net, shared) = (Net::new(), numbered(1, 8));
    let service = net.serve(1, &shared);
    let endpoint = net.endpoint();
    net.run(async {
        let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
        let get = |n: u64| session.call(OPERATE, Operation::Get(&n.to_be_bytes()).encode());
        let calls: Vec<_> = (0..8).map(get).collect();
        for (number, reply) in join_all(calls).await.into_iter().enumerate() {
            assert_eq!(reply.unwrap().response[1..], (number as u64).to_le_bytes());
        }
    });
    assert_eq!((service.stats().gets, service.stats().get_bursts), (8, 1));
    let client = net.client(1, ClientConfig::default());
    net.run(async {
        let keys = [7u64, 100, 3, 7].map(u64::to_be_bytes);
        let found = client.get_many(keys).await.unwrap();
        let found: Vec<Option<&[u8]>> = found.iter().map(Option::as_deref).collect();
        let at = |number: u64| number.to_le_bytes();
        assert_eq!(found, [Some(&at(7)[..]), None, Some(&at(3)), Some(&at(7))]);
        assert!(client.get_many([b""; 0]).await.unwrap().is_empty());
    });
}

/// Operations that arrive together are one burst, however they are mixed, and are done in their order.
#[test]
fn mixed_operations_that_arrive_together_are_one_burst() {
    let (net, shared) = (Net::new(), numbered(1, 100));
    let service = net.serve(1, &shared);
    let endpoint = net.endpoint();
    net.run(async {
        let mut sessions = Vec::new();
        for _ in 0..2 {
            sessions.push(endpoint.connect(&Addr::Node(1)).await.unwrap());
        }
        // Eight of each kind alternate: a session has eight slots.
        let (key, other) = (|number: u64| number.to_be_bytes(), |number: u64| (number + 50).to_be_bytes());
        let calls = (0..8u64).flat_map(|number| {
            let session = &sessions[usize::from(number >= 4)];
            let get = session.call(OPERATE, Operation::Get(&key(number)).encode());
            let put = session.call(OPERATE, Operation::Put(&other(number), b"new").encode());
            [get, put]
        });
        let replies: Vec<_> =
            join_all(calls.collect::<Vec<_>>()).await.into_iter().map(|reply| reply.unwrap().response).collect();
        for (number, pair) in (0u64..).zip(replies.chunks(2)) {
            assert_eq!((&pair[0][1..], &pair[1][..]), (&number.to_le_bytes()[..], &[1][..]));
        }
        let stats = service.stats();
        assert_eq!((stats.gets, stats.get_bursts, stats.puts, stats.write_bursts), (8, 1, 8, 1), "{stats:?}");
        // A look-up finds what stands before it in the burst, and not what stands behind it.
        let operations = [
            Operation::Get(b"a"),
            Operation::Put(b"a", b"1"),
            Operation::Get(b"a"),
            Operation::Put(b"a", b"a longer value"),
            Operation::Get(b"a"),
            Operation::Delete(b"a"),
            Operation::Get(b"a"),
            Operation::Delete(b"a"),
        ];
        let calls = operations.map(|operation| sessions[0].call(OPERATE, operation.encode()));
        let answers: Vec<Vec<u8>> =
            join_all(calls).await.into_iter().map(|reply| reply.unwrap().response.to_vec()).collect();
        let expected = [&[0][..], &[0], b"\x011", &[1], b"\x01a longer value", &[1], &[0], &[0]];
        assert_eq!(answers, expected);
    });
    let stats = service.stats();
    assert_eq!((stats.gets, stats.get_bursts, stats.puts, stats.deletes, stats.write_bursts), (12, 2, 10, 2, 2));
    shared.index().verify(&dunlin_index::pin()).unwrap();
}

/// Short pages that are asked for together are begun together.
#[test]
fn short_scans_that_arrive_together_are_one_burst() {
    let (net, shared) = (Net::new(), numbered(1, 1000));
    let service = net.serve(1, &shared);
    let endpoint = net.endpoint();
    net.run(async {
        let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
        let limits = PageLimits { items: 5, ..SHORT_PAGE };
        let calls = (0..8u64).map(|number| {
            let from = (number * 100).to_be_bytes();
            let order = [Order::Ascending, Order::Descending][number as usize % 2];
            let range = if order == Order::Ascending { Range::from(&from) } else { Range::between(b"", &from) };
            session.call(SCAN, ScanRequest { range, order, limits, after: None }.encode())
        });
        let pages = join_all(calls.collect::<Vec<_>>()).await;
        for (number, page) in (0u64..).zip(pages) {
            let page = Page::parse(page.unwrap().response).unwrap();
            let found: Vec<u64> =
                page.items().map(|(_, value)| u64::from_le_bytes(value.try_into().unwrap())).collect();
            let expected: Vec<u64> = match number % 2 {
                0 => (number * 100..number * 100 + 5).collect(),
                _ => (number * 100 - 5..number * 100).rev().collect(),
            };
            assert_eq!(found, expected, "{number}");
        }
    });
    let stats = service.stats();
    assert_eq!((stats.short_pages, stats.scan_bursts, stats.scans, stats.items), (8, 1, 8, 40), "{stats:?}");
}

/// Two keys of 64 KiB that differ at the end, and some that end within them.
fn deep_keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (1..4).map(|part| vec![b'k'; part * 1000]).collect();
    keys.extend([b'k', b'l'].map(|last| [&vec![b'k'; KEY_BYTES_MAX - 1][..], &[last]].concat()));
    keys
}

/// The event loop does not pass thousands of layers for a request of some bytes: a worker does, and the client asks it.
#[test]
fn a_short_scan_of_keys_with_long_prefixes_in_common_goes_to_a_worker() {
    let (net, shared) = (Net::new(), shared(1));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    let endpoint = net.endpoint();
    let keys = deep_keys();
    net.run(async {
        for key in &keys {
            client.put(key, b"v").await.unwrap();
        }
        let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
        for (range, order) in [
            (Range::from(&keys[3][..5000]), Order::Ascending),
            (Range::ALL, Order::Descending),
            (Range::between(&keys[2], b"kl"), Order::Descending),
        ] {
            let limits = PageLimits { items: 1, bytes: 1 };
            let request = ScanRequest { range, order, limits, after: None }.encode();
            let CallError::Application(error) = session.call(SCAN, request).await.unwrap_err().error else { panic!() };
            assert_eq!(Code::of(error.code()), Some(Code::TooDeep));
        }
        // What comes before is in a page; the client has the rest from a worker.
        for order in [Order::Ascending, Order::Descending] {
            for limits in [SHORT_PAGE, PageLimits { items: 1, bytes: 1 }] {
                let (mut pages, mut found) = (client.scan_with(Range::ALL, order, limits).unwrap(), Vec::new());
                while let Some(page) = pages.next().await.unwrap() {
                    found.extend(page.items().map(|(key, _)| key.to_vec()));
                }
                if order == Order::Descending {
                    found.reverse();
                }
                assert!(found == keys, "{order:?} {limits:?}: {} items", found.len());
            }
        }
    });
    let stats = service.stats();
    assert!(stats.long_pages > 0 && stats.short_pages > 0 && stats.bad == 0, "{stats:?}");
}

/// A count and a removal of few long keys end after some bytes, as those of many short keys end after some items.
#[test]
fn counts_and_removals_are_bounded_by_the_bytes_of_keys() {
    let (net, shared) = (Net::new(), shared(1));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    let endpoint = net.endpoint();
    let keys: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; KEY_BYTES_MAX]).collect();
    for key in &keys {
        shared.index().insert(key, b"v", &dunlin_index::pin()).unwrap();
    }
    net.run(async {
        let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
        for (req_type, limits, bytes) in
            [(COUNT, COUNT_PAGE, COUNT_BYTES_MAX), (DELETE_RANGE, DELETE_PAGE, DELETE_BYTES_MAX)]
        {
            let request = ScanRequest { range: Range::ALL, order: Order::Ascending, limits, after: None };
            let answer = session.call(req_type, request.encode()).await.unwrap().response;
            let part = Counted::parse(&answer).unwrap();
            let expected = bytes.div_ceil(KEY_BYTES_MAX + 8);
            assert!(part.has_more && part.items as usize <= expected + 4, "{req_type:#x}: {} items", part.items);
            assert_eq!(part.last, &keys[part.items as usize - 1]);
        }
        let left = shared.index().len() as u64;
        assert_eq!(client.count(Range::ALL).await.unwrap(), left);
        assert_eq!(client.delete_range(Range::ALL).await.unwrap(), left);
    });
    assert!(shared.index().is_empty() && service.stats().bad == 0);
}

/// What a client asks for together is sent together, arrives together and is looked up together; so are writes.
#[test]
fn a_client_asks_in_bursts() {
    let (net, shared) = (Net::new(), numbered(1, 1000));
    let service = net.serve(1, &shared);
    let client = &net.client(1, ClientConfig::default());
    net.run(async {
        let found = client.get_many((0..1024u64).map(u64::to_be_bytes)).await.unwrap();
        for (number, value) in (0..).zip(&found) {
            let expected = (number < 1000u64).then(|| number.to_le_bytes());
            assert_eq!(value.as_deref(), expected.as_ref().map(|value| &value[..]));
        }
        let stats = service.stats();
        assert_eq!(stats.gets, 1024);
        assert!(stats.get_bursts <= 1024 / 16, "bursts of 16 at least: {stats:?}");
        let removed =
            join_all((0..32u64).map(|number| async move { client.delete(&number.to_be_bytes()).await })).await;
        assert!(removed.into_iter().all(|existed| existed.unwrap()));
        let removed = service.stats();
        assert!(removed.deletes == 32 && removed.write_bursts <= 2, "{removed:?}");
        let stored =
            join_all((0..32u64).map(|number| async move { client.put(&number.to_be_bytes(), b"").await })).await;
        assert!(stored.into_iter().all(|existed| !existed.unwrap()));
        let stored = service.stats();
        assert!(stored.puts == 32 && stored.write_bursts - removed.write_bursts <= 2, "{stored:?}");
    });
    assert_eq!(shared.index().len(), 1000);
}

#[test]
fn items_are_counted_at_the_server_part_by_part() {
    let count = 2 * u64::from(COUNT_PAGE.items) + 7;
    let (net, shared) = (Net::new(), numbered(1, count));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    net.run(async {
        assert_eq!(client.count(Range::ALL).await.unwrap(), count);
        let stats = service.stats();
        assert_eq!((stats.scans, stats.counts, stats.items, stats.long_pages, stats.in_progress), (1, 3, count, 0, 0));
        let (low, high) = (100u64.to_be_bytes(), 200u64.to_be_bytes());
        assert_eq!(client.count(Range::between(&low, &high)).await.unwrap(), 100);
        assert_eq!(client.count(Range::prefix(b"none")).await.unwrap(), 0);
        assert!(matches!(client.count(Range::between(&high, &low)).await, Err(IndexError::Reversed)));
        let long = vec![0; KEY_BYTES_MAX + 1];
        assert!(matches!(client.count(Range::from(&long)).await, Err(IndexError::TooLong(_))));
    });
}

#[test]
fn ranges_are_removed_at_the_server_part_by_part() {
    let count = 2 * u64::from(DELETE_PAGE.items) + 107;
    let (net, shared) = (Net::new(), numbered(1, count));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    let deletes = || {
        let stats = service.stats();
        (stats.range_deletes, stats.range_deleted, stats.scans, stats.items, stats.in_progress)
    };
    net.run(async {
        let (low, high) = (100u64.to_be_bytes(), 200u64.to_be_bytes());
        assert_eq!(client.delete_range(Range::between(&low, &high)).await.unwrap(), 100);
        assert_eq!((client.count(Range::ALL).await.unwrap(), deletes().0), (count - 100, 1));
        assert!(client.get(&99u64.to_be_bytes()).await.unwrap().is_some());
        assert!(client.get(&high).await.unwrap().is_some());
        assert_eq!(client.delete_range(Range::prefix(b"none")).await.unwrap(), 0);
        assert!(matches!(client.delete_range(Range::between(&high, &low)).await, Err(IndexError::Reversed)));
        let long = vec![0; KEY_BYTES_MAX + 1];
        assert!(matches!(client.delete_range(Range::from(&long)).await, Err(IndexError::TooLong(_))));
        let (_, removed, scans, items, _) = deletes();
        // What is left fills two parts, and a third one.
        assert_eq!(client.delete_range(Range::ALL).await.unwrap(), count - 100);
        assert_eq!(deletes(), (5, removed + count - 100, scans, items, 0), "removals are no scans");
    });
    assert!(shared.index().is_empty());
    shared.index().verify(&dunlin_index::pin()).unwrap();
}

/// Whether a part of a range was removed is not known, if the answer is lost: then it is not tried again, and the error
/// says so.
#[test]
fn a_removal_that_may_have_been_done_is_not_repeated() {
    let (net, shared) = (Net::new(), numbered(1, 10));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig { timeout: Duration::from_millis(50), ..ClientConfig::default() });
    net.workers_run.set(false);
    net.run(async {
        let error = client.delete_range(Range::ALL).await.unwrap_err();
        let IndexError::Call { why, .. } = &error else { panic!("{error}") };
        assert!(why.may_have_run, "{error}");
        net.workers_run.set(true);
        client.count(Range::ALL).await.unwrap();
    });
    assert!(service.stats().range_deletes <= 1, "{:?}", service.stats());
}

/// Scans wait for workers that do not run at all. Look-ups of the same client take exactly as long as without scans.
#[test]
fn a_get_takes_the_same_time_while_long_scans_wait_and_run() {
    let (net, shared) = (Net::new(), numbered(1, 10_000));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    let latencies = async || {
        let mut latencies = Vec::new();
        for number in 0u64..200 {
            let begun = net.now();
            assert!(client.get(&(number * 7).to_be_bytes()).await.unwrap().is_some());
            latencies.push(net.now() - begun);
        }
        latencies.into_iter().max()
    };
    let quiet = net.run(async {
        client.get(b"").await.unwrap();
        latencies().await
    });
    net.workers_run.set(false);
    let beside_scans = net.run(async {
        let scans = join_all((0..QUEUE).map(|_| numbers(&client, Range::ALL, Order::Ascending, LONG_PAGE)));
        let look_ups = async {
            // Until all scans have arrived, and wait for workers.
            net.timers().sleep(Duration::from_millis(1)).await;
            let beside_scans = latencies().await;
            assert_eq!(service.stats().long_pages, 0, "no worker has run");
            net.workers_run.set(true);
            beside_scans
        };
        let (beside_scans, scans) = futures::join!(look_ups, scans);
        assert!(scans.iter().all(|(numbers, _)| numbers.iter().copied().eq(0..10_000)));
        beside_scans
    });
    assert_eq!(beside_scans, quiet);
    let stats = service.stats();
    assert_eq!((stats.short_pages, stats.items), (0, QUEUE as u64 * 10_000));
}

/// The event loop makes short pages, which are bounded; workers make the others.
#[test]
fn the_limits_of_a_page_decide_where_it_is_made() {
    let (net, shared) = (Net::new(), numbered(1, 1000));
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    net.run(async {
        let all = (0..1000).collect::<Vec<u64>>();
        assert_eq!(numbers(&client, Range::ALL, Order::Ascending, SHORT_PAGE).await, (all.clone(), 16));
        assert_eq!((service.stats().short_pages, service.stats().long_pages), (16, 0));
        let limits = PageLimits { items: 65, ..SHORT_PAGE };
        assert_eq!(numbers(&client, Range::ALL, Order::Ascending, limits).await, (all.clone(), 16));
        assert_eq!((service.stats().short_pages, service.stats().long_pages), (16, 16));
        // 24 bytes each.
        let limits = PageLimits { items: 1000, bytes: 24 * 100 + 23 };
        assert_eq!(numbers(&client, Range::ALL, Order::Ascending, limits).await, (all, 10));
        let (low, high) = (100u64.to_be_bytes(), 200u64.to_be_bytes());
        let range = Range { low: Gap::After(&low), high: Gap::After(&high) };
        let expected = (101..=200).rev().collect::<Vec<u64>>();
        assert_eq!(numbers(&client, range, Order::Descending, SHORT_PAGE).await, (expected, 2));
    });
}

/// The server keeps nothing of a scan, so it goes on where it was whatever was written meanwhile.
#[test]
fn a_scan_goes_on_behind_its_last_key_although_that_is_gone() {
    let (net, shared) = (Net::new(), numbered(1, 300));
    net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    net.run(async {
        let mut pages = client.scan_with(Range::ALL, Order::Ascending, SHORT_PAGE).unwrap();
        assert_eq!(pages.next().await.unwrap().map(|page| page.len()), Some(64));
        assert_eq!(pages.last_key(), Some(&63u64.to_be_bytes()[..]));
        for number in 50u64..70 {
            assert!(client.delete(&number.to_be_bytes()).await.unwrap());
        }
        client.put(&[0], b"before").await.unwrap();
        client.put(&69u64.to_be_bytes(), b"new").await.unwrap();
        let page = pages.next().await.unwrap().unwrap();
        assert_eq!(page.items().next(), Some((&69u64.to_be_bytes()[..], &b"new"[..])));
        let mut rest = page.len();
        while let Some(page) = pages.next().await.unwrap() {
            rest += page.len();
        }
        assert_eq!(rest, 231);
        assert!(pages.next().await.unwrap().is_none());
    });
}

/// Requests that the workers have no room for are pushed back. Nothing of a scan is lost, and nothing comes twice.
#[test]
fn a_scan_that_was_pushed_back_goes_on_where_it_was() {
    let (net, shared) = (Net::new(), numbered(1, 1000));
    net.serve(1, &shared);
    let retry = Retry { attempts_max: 1, ..Retry::default() };
    let client = net.client(1, ClientConfig { retry, ..ClientConfig::default() });
    let other = net.client(1, ClientConfig::default());
    let limits = PageLimits { items: 400, ..LONG_PAGE };
    net.run(async {
        let mut pages = client.scan_with(Range::ALL, Order::Ascending, limits).unwrap();
        let mut found = pages.next().await.unwrap().unwrap().len();
        net.workers_run.set(false);
        let others = join_all((0..QUEUE).map(|_| numbers(&other, Range::ALL, Order::Ascending, LONG_PAGE)));
        let pushed_back = async {
            net.timers().sleep(Duration::from_millis(1)).await;
            let error = pages.next().await.unwrap_err();
            let IndexError::Call { why, .. } = &error else { panic!("{error}") };
            assert!(matches!(why.why, Why::Call(CallError::Busy)) && !why.may_have_run, "{error}");
            net.workers_run.set(true);
        };
        futures::join!(others, pushed_back);
        while let Some(page) = pages.next().await.unwrap() {
            assert_eq!(page.items().next().map(|(key, _)| key), Some(&(found as u64).to_be_bytes()[..]));
            found += page.len();
        }
        assert_eq!(found, 1000);
    });
}

#[test]
fn a_scan_ends_with_an_error_if_its_server_was_restarted() {
    let net = Net::new();
    net.serve(1, &numbered(1, 300));
    let client = net.client(1, ClientConfig::default());
    net.run(async {
        for limits in [SHORT_PAGE, PageLimits { items: 100, ..LONG_PAGE }] {
            let mut pages = client.scan_with(Range::ALL, Order::Ascending, limits).unwrap();
            assert!(pages.next().await.unwrap().is_some());
            net.end(1);
            let incarnation = 2 + u64::from(limits.items);
            net.serve(1, &numbered(incarnation, 300));
            let error = pages.next().await.unwrap_err();
            assert!(matches!(error, IndexError::Restarted { .. }), "{error}");
            assert!(pages.next().await.unwrap().is_none(), "it has ended");
            let last = pages.last_key().unwrap().to_vec();
            let rest = Range { low: Gap::After(&last), ..Range::ALL };
            let (numbers, _) = numbers(&client, rest, Order::Ascending, SHORT_PAGE).await;
            assert!(numbers.into_iter().eq(u64::from(limits.items)..300));
        }
    });
}

#[test]
fn a_full_index_refuses_an_item_and_loses_none() {
    let (net, budget) = (Net::new(), 4 << 20);
    let shared = SharedIndex::with_incarnation(Index::new(budget).unwrap(), 1);
    let service = net.serve(1, &shared);
    let client = net.client(1, ClientConfig::default());
    let value = vec![7; 10_000];
    net.run(async {
        let mut stored = 0u64;
        let error = loop {
            match client.put(&stored.to_be_bytes(), &value).await {
                Ok(existed) => assert!(!existed),
                Err(error) => break error,
            }
            stored += 1;
        };
        assert!(matches!(error, IndexError::Full { .. }), "{error}");
        assert!(stored > 100, "{stored}");
        // An item that is there keeps its value.
        let error = client.put(&1u64.to_be_bytes(), &vec![8; 100_000]).await.unwrap_err();
        assert!(matches!(error, IndexError::Full { .. }), "{error}");
        for number in 0..stored {
            assert_eq!(client.get(&number.to_be_bytes()).await.unwrap().as_deref(), Some(&value[..]));
        }
        assert!(client.get(&stored.to_be_bytes()).await.unwrap().is_none());
        assert!(client.delete(&0u64.to_be_bytes()).await.unwrap());
        // What was removed makes room, when threads of other tests have dropped their guards.
        let begun = Instant::now();
        while let Err(error) = client.put(&stored.to_be_bytes(), &value).await {
            assert!(matches!(error, IndexError::Full { .. }), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(60), "what was removed makes no room");
            std::thread::yield_now();
        }
        assert!(service.stats().full >= 2);
    });
}

/// Two cores with an index, and two worker threads for both.
#[test]
fn cores_share_an_index_and_its_workers() {
    let net = Net::with_pool(WorkerPool::new(2, QUEUE).unwrap());
    let shared = numbered(1, 50_000);
    let cores = [net.serve(1, &shared), net.serve(2, &shared)];
    let config = ClientConfig { timeout: Duration::from_secs(50), ..ClientConfig::default() };
    let clients = [net.client(1, config), net.client(2, config)];
    net.run(async {
        let scans = clients.each_ref().map(|client| numbers(client, Range::ALL, Order::Descending, config.page));
        for (numbers, pages) in join_all(scans).await {
            assert!(numbers.into_iter().eq((0..50_000).rev()));
            // 24 bytes each.
            assert_eq!(pages, 50_000usize.div_ceil((64 << 10) / 24));
        }
        clients[0].put(b"a", b"b").await.unwrap();
        assert_eq!(clients[1].get(b"a").await.unwrap().as_deref(), Some(&b"b"[..]));
        assert!(clients[1].delete(b"a").await.unwrap());
        assert!(clients[0].get(b"a").await.unwrap().is_none());
    });
    assert!(cores.iter().all(|core| core.stats().items == 50_000));
}

#[test]
fn servers_that_are_something_else_are_named() {
    let net = Net::new();
    let plain = net.start(1);
    let client = net.client(1, ClientConfig::default());
    net.run(async {
        let error = client.get(b"a").await.err().unwrap();
        assert!(matches!(error, IndexError::Protocol { .. }), "{error}");
    });
    // It answers, but not as an index.
    plain.register(OPERATE, |request| request.respond(b"7")).unwrap();
    plain.register(dunlin_index::wire::SCAN, |request| request.respond(b"7")).unwrap();
    net.run(async {
        let error = client.get(b"a").await.err().unwrap();
        assert!(matches!(error, IndexError::Protocol { .. }), "{error}");
        let mut pages = client.scan_with(Range::ALL, Order::Ascending, SHORT_PAGE).unwrap();
        let error = pages.next().await.err().unwrap();
        assert!(matches!(error, IndexError::Protocol { .. }), "{error}");
        assert!(pages.next().await.unwrap().is_none());
    });
    let error = IndexService::register(&plain, shared(1), &net.pool).unwrap_err();
    assert!(error.to_string().contains("121"), "{error}");
    let config = ClientConfig { timeout: Duration::from_millis(300), ..ClientConfig::default() };
    let client = net.client(9, config);
    net.run(async {
        let error = client.put(b"a", b"b").await.unwrap_err();
        assert!(matches!(error, IndexError::Call { .. }), "{error}");
    });
}
