//! Requests that no client of this crate sends.

use std::rc::Rc;

use dunlin_index::wire::{
    After, COUNT, COUNT_PAGE, Code, DELETE_PAGE, DELETE_RANGE, LONG_PAGE, LONG_SCAN, OPERATE, Operation, Page,
    PageLimits, SCAN, SHORT_PAGE, STATS, ScanRequest,
};
use dunlin_index::{Client, ClientConfig, Gap, IndexService, KEY_BYTES_MAX, Order, Range, VALUE_BYTES_MAX, pin};
use dunlin_net::Addr;
use dunlin_rpc::{CallError, EndpointConfig, Session, WorkerPool};
use dunlin_trial::Random;

use crate::net::{Net, PEER_TIMEOUT, numbered, shared};

const ITEMS: u64 = 500;
const INCARNATION: u64 = 77;

/// The code of the error that a request ends with; `None` if it is answered.
async fn code_of(session: &Session, req_type: u8, request: Vec<u8>) -> Option<Code> {
    match session.call(req_type, request).await {
        Ok(_) => None,
        Err(failure) => {
            let CallError::Application(error) = failure.error else { panic!("type {req_type:#x}: {failure}") };
            let code = Code::of(error.code()).unwrap_or_else(|| panic!("type {req_type:#x}: {error}"));
            assert_eq!(error.message(), code.message());
            Some(code)
        }
    }
}

fn page_of<'a>(range: Range<'a>, after: Option<After<'a>>) -> ScanRequest<'a> {
    ScanRequest { range, order: Order::Ascending, limits: SHORT_PAGE, after }
}

/// All items are as they were.
fn assert_nothing_is_lost(shared: &dunlin_index::SharedIndex) {
    shared.index().verify(&pin()).unwrap();
    assert_eq!(shared.index().len(), ITEMS as usize);
    for number in 0..ITEMS {
        let (key, value) = (number.to_be_bytes(), number.to_le_bytes());
        assert_eq!(shared.index().get(&key, &pin()).as_deref(), Some(&value[..]));
    }
}

#[test]
fn each_wrong_request_is_refused_with_its_reason_and_changes_nothing() {
    let (net, shared) = (Net::new(), numbered(INCARNATION, ITEMS));
    let service = net.serve(1, &shared);
    let endpoint = net.endpoint();
    let with = |mut request: Vec<u8>, at: usize, byte: u8| {
        request[at] = byte;
        request
    };
    let get = |key: &[u8]| Operation::Get(key).encode();
    let delete = |key: &[u8]| Operation::Delete(key).encode();
    let put = Operation::Put(&7u64.to_be_bytes(), b"other").encode();
    let scan = page_of(Range::between(b"b", b"d"), None).encode();
    let long = vec![7; KEY_BYTES_MAX + 1];
    let sized =
        |items, bytes| ScanRequest { limits: PageLimits { items, bytes }, ..page_of(Range::ALL, None) }.encode();
    let after = |key, incarnation| page_of(Range::between(b"b", b"d"), Some(After { key, incarnation })).encode();
    let mut requests = vec![
        (OPERATE, Vec::new(), Code::Malformed),
        (OPERATE, vec![1], Code::Malformed),
        (OPERATE, with(get(b"a"), 0, 2), Code::Unknown),
        (OPERATE, with(get(b"a"), 1, 3), Code::Unknown),
        (OPERATE, get(&long), Code::KeyTooLong),
        (OPERATE, with(delete(&7u64.to_be_bytes()), 0, 0), Code::Unknown),
        (OPERATE, delete(&long), Code::KeyTooLong),
        (OPERATE, put[..2].to_vec(), Code::Malformed),
        (OPERATE, put[..7].to_vec(), Code::Malformed),
        (OPERATE, put[..15].to_vec(), Code::Malformed),
        (OPERATE, with(put.clone(), 7, 255), Code::Malformed),
        (OPERATE, with(put.clone(), 0, 9), Code::Unknown),
        (OPERATE, with(put.clone(), 2, 1), Code::Unknown),
        (OPERATE, Operation::Put(&long, b"value").encode(), Code::KeyTooLong),
        (OPERATE, Operation::Put(&7u64.to_be_bytes(), &vec![7; VALUE_BYTES_MAX + 1]).encode(), Code::ValueTooLong),
        (OPERATE, Operation::Put(b"", &vec![1; 5 << 20]).encode(), Code::ValueTooLong),
        (OPERATE, vec![1; 5 << 20], Code::Unknown),
        (SCAN, sized(SHORT_PAGE.items + 1, 1), Code::PageLimits),
        (SCAN, sized(1, SHORT_PAGE.bytes + 1), Code::PageLimits),
    ];
    let descending = ScanRequest { order: Order::Descending, ..page_of(Range::ALL, None) };
    requests.push((DELETE_RANGE, descending.encode(), Code::Unknown));
    for (req_type, most) in
        [(SCAN, SHORT_PAGE), (LONG_SCAN, LONG_PAGE), (COUNT, COUNT_PAGE), (DELETE_RANGE, DELETE_PAGE)]
    {
        if most.bytes < u32::MAX {
            requests.push((req_type, sized(most.items, u32::MAX), Code::PageLimits));
        }
        requests.extend((0..scan.len()).map(|len| (req_type, scan[..len].to_vec(), Code::Malformed)));
        requests.extend([
            (req_type, [&scan[..], b"x"].concat(), Code::Malformed),
            (req_type, with(scan.clone(), 0, 0), Code::Unknown),
            (req_type, with(scan.clone(), 1, 2), Code::Unknown),
            (req_type, with(scan.clone(), 2, 3), Code::Unknown),
            (req_type, with(scan.clone(), 3, 255), Code::Unknown),
            (req_type, sized(0, 1), Code::PageLimits),
            (req_type, sized(1, 0), Code::PageLimits),
            (req_type, sized(u32::MAX, most.bytes), Code::PageLimits),
            (req_type, page_of(Range::from(&long), None).encode(), Code::KeyTooLong),
            (req_type, page_of(Range::between(b"d", b"b"), None).encode(), Code::Reversed),
            (
                req_type,
                page_of(Range { low: Gap::After(b"b"), high: Gap::Before(b"b") }, None).encode(),
                Code::Reversed,
            ),
            (req_type, after(b"c", INCARNATION + 1), Code::OtherServer),
            (req_type, after(b"a", INCARNATION), Code::CursorOutside),
            (req_type, after(b"d", INCARNATION), Code::CursorOutside),
            (req_type, after(b"c", 0), Code::Malformed),
        ]);
    }
    let wrong = requests.len() as u64;
    net.run(async {
        let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
        for (at, (req_type, request, code)) in requests.into_iter().enumerate() {
            assert_eq!(code_of(&session, req_type, request).await, Some(code), "request {at}, type {req_type:#x}");
        }
        let failure = session.call(STATS, vec![1]).await.unwrap_err();
        assert_eq!(failure.error, CallError::NoHandler);
        // Empty ranges and cursors at their ends are no mistakes.
        for range in [Range::between(b"b", b"b"), Range { low: Gap::After(b"b"), high: Gap::Before(b"b\0") }] {
            assert_eq!(code_of(&session, SCAN, page_of(range, None).encode()).await, None);
            assert_eq!(code_of(&session, DELETE_RANGE, page_of(range, None).encode()).await, None);
        }
        assert_eq!(code_of(&session, SCAN, after(b"b", INCARNATION)).await, None);
        // A valid request among invalid ones of the same burst is served.
        let calls = [get(&7u64.to_be_bytes()), vec![9, 9], get(&8u64.to_be_bytes())];
        let calls = calls.map(|request| session.call(OPERATE, request));
        let [first, bad, second]: [_; 3] = futures::future::join_all(calls).await.try_into().unwrap();
        assert_eq!(first.unwrap().response[1..], 7u64.to_le_bytes());
        assert_eq!(second.unwrap().response[1..], 8u64.to_le_bytes());
        assert!(bad.is_err());
    });
    assert_eq!((service.stats().bad, service.stats().puts, service.stats().deletes), (wrong + 1, 0, 0));
    assert_nothing_is_lost(&shared);
}

/// Requests with random changes are answered, or refused with a reason; a look-up and a scan never change an item.
#[test]
fn changed_requests_end_with_an_answer_or_a_reason() {
    let (mut answered, mut refused) = (0, 0);
    for seed in 0..3 {
        println!("seed {seed}");
        let (net, shared) = (Net::new(), numbered(INCARNATION, ITEMS));
        net.serve(1, &shared);
        let (endpoint, mut random) = (net.endpoint(), Random::new(seed));
        let (answered, refused) = (&mut answered, &mut refused);
        net.run(async {
            let session = Rc::new(endpoint.connect(&Addr::Node(1)).await.unwrap());
            for _ in 0..1500 {
                let low = random.between(0, ITEMS).to_be_bytes();
                let last = random.between(0, ITEMS).to_be_bytes();
                let after = random.chance(50).then_some(After { key: &last, incarnation: INCARNATION });
                let mut request = page_of(Range::from(&low), after).encode();
                for _ in 0..random.between(0, 3) {
                    let at = random.index(request.len());
                    match random.between(0, 3) {
                        0 => request.truncate(at.max(1)),
                        1 => request.insert(at, random.next() as u8),
                        2 => request[at] = random.between(0, 3) as u8,
                        _ => request[at] = random.next() as u8,
                    }
                }
                // Its second byte is the order of a scan: a look-up, or a PUT of something malformed.
                let req_type = [OPERATE, SCAN, LONG_SCAN, COUNT][random.index(4)];
                if req_type == OPERATE {
                    request.truncate(1);
                    request.extend([0, low[0]]);
                }
                match code_of(&session, req_type, request).await {
                    Some(_) => *refused += 1,
                    None => *answered += 1,
                }
            }
        });
        assert_nothing_is_lost(&shared);
    }
    assert!(answered > 500 && refused > 500, "{answered} were answered, {refused} refused");
}

/// Writes with random changes are done or refused with a reason, and leave a sound index.
#[test]
fn changed_writes_leave_a_sound_index() {
    let (mut answered, mut refused) = (0, 0);
    for seed in 0..3 {
        println!("seed {seed}");
        let (net, shared) = (Net::new(), numbered(INCARNATION, ITEMS));
        net.serve(1, &shared);
        let (endpoint, mut random) = (net.endpoint(), Random::new(seed));
        let (answered, refused) = (&mut answered, &mut refused);
        net.run(async {
            let session = Rc::new(endpoint.connect(&Addr::Node(1)).await.unwrap());
            for _ in 0..1500 {
                let key = random.between(0, ITEMS).to_be_bytes();
                let mut request = match random.between(0, 2) {
                    0 => Operation::Put(&key, &key).encode(),
                    1 => Operation::Put(&key, &key.repeat(20)).encode(),
                    _ => Operation::Delete(&key).encode(),
                };
                for _ in 0..random.between(0, 3) {
                    let at = random.index(request.len());
                    match random.between(0, 2) {
                        0 => request.truncate(at.max(1)),
                        1 => request.insert(at, random.next() as u8),
                        _ => request[at] = random.next() as u8,
                    }
                }
                match code_of(&session, OPERATE, request).await {
                    Some(_) => *refused += 1,
                    None => *answered += 1,
                }
            }
        });
        shared.index().verify(&pin()).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(answered > 500 && refused > 500, "{answered} were answered, {refused} refused");
}

/// A cursor names its key and the run of the server, so any core that shares the index takes it, and no other server.
#[test]
fn a_cursor_goes_on_at_another_core_and_not_at_another_server() {
    let (net, shared, other) = (Net::new(), numbered(INCARNATION, ITEMS), numbered(INCARNATION + 1, ITEMS));
    let cores = [net.serve(1, &shared), net.serve(2, &shared)];
    net.serve(3, &other);
    let endpoint = net.endpoint();
    net.run(async {
        let mut sessions = Vec::new();
        for node in [1, 2, 3] {
            sessions.push(endpoint.connect(&Addr::Node(node)).await.unwrap());
        }
        let first = sessions[0].call(SCAN, page_of(Range::ALL, None).encode()).await.unwrap();
        let first = Page::parse(first.response).unwrap();
        let last = first.last_key().unwrap();
        assert_eq!((first.len(), first.has_more(), first.incarnation()), (64, true, INCARNATION));
        let request = page_of(Range::ALL, Some(After { key: last, incarnation: first.incarnation() })).encode();
        let second = sessions[1].call(SCAN, request.clone()).await.unwrap();
        let second = Page::parse(second.response).unwrap();
        assert_eq!(second.items().next().map(|(key, _)| key), Some(&64u64.to_be_bytes()[..]));
        assert_eq!(code_of(&sessions[2], SCAN, request.clone()).await, Some(Code::OtherServer));
        assert_eq!(code_of(&sessions[2], LONG_SCAN, request.clone()).await, Some(Code::OtherServer));
        assert_eq!(code_of(&sessions[2], COUNT, request.clone()).await, Some(Code::OtherServer));
        assert_eq!(code_of(&sessions[2], DELETE_RANGE, request).await, Some(Code::OtherServer));
    });
    assert_eq!(cores.map(|core| core.stats().short_pages), [1, 1]);
}

/// A client asks for many long pages, and stands still before it has read them. The server holds some of them for as
/// long as it takes the client for alive, and serves others. Then the client goes on, and its scan with it.
#[test]
fn a_client_that_stops_reading_holds_bounded_memory_and_its_scan_goes_on() {
    const SESSIONS: usize = 8;
    const PAGES: u64 = 24;
    const HELD_MAX: u64 = 5 << 20;
    let net = Net::with_pool(WorkerPool::by_hand(8 * SESSIONS));
    let shared = shared(INCARNATION);
    let items = PAGES * u64::from(LONG_PAGE.bytes) / 1024;
    for number in 0..items {
        shared.index().insert(&number.to_be_bytes(), &[7; 1000], &pin()).unwrap();
    }
    let config = EndpointConfig { message_bytes_max: 1 << 20, held_bytes_max: HELD_MAX, ..EndpointConfig::default() };
    let server = net.start_with(1, config);
    let _service = IndexService::register(&server, shared, &net.pool).unwrap();
    let endpoint = net.endpoint();
    let reader = 101;
    let scanner = Client::new(&endpoint, Addr::Node(1), ClientConfig::default());
    let other = net.client(1, ClientConfig::default());
    net.run(async {
        let mut pages = scanner.scan_with(Range::ALL, Order::Ascending, LONG_PAGE).unwrap();
        let mut found = pages.next().await.unwrap().unwrap().len() as u64;
        let request = ScanRequest { limits: LONG_PAGE, ..page_of(Range::ALL, None) }.encode();
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(endpoint.connect(&Addr::Node(1)).await.unwrap());
        }
        let calls = sessions.iter().flat_map(|session| [(); 8].map(|()| session.call(LONG_SCAN, request.clone())));
        let mut calls = futures::future::join_all(calls);
        assert!(futures::poll!(&mut calls).is_pending());
        // The requests are on their way.
        net.timers().sleep(std::time::Duration::from_micros(20)).await;
        net.stopped.set(Some(reader));
        let mut most = 0;
        for number in 0..200u64 {
            assert!(other.get(&number.to_be_bytes()).await.unwrap().is_some());
            most = most.max(server.stats().held_bytes);
        }
        assert!((2 * u64::from(LONG_PAGE.bytes)..=HELD_MAX).contains(&most), "{most} bytes are held");
        net.timers().sleep(3 * PEER_TIMEOUT).await;
        assert_eq!(server.stats().held_bytes, 0, "nothing is kept for a client that is silent");
        net.stopped.set(None);
        drop(calls);
        while let Some(page) = pages.next().await.unwrap() {
            assert_eq!(page.items().next().map(|(key, _)| key), Some(&found.to_be_bytes()[..]));
            found += page.len() as u64;
        }
        assert_eq!(found, items);
    });
}
