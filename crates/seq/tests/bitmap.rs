//! Many numbers across a wrap of the lower half, each looked up in a bitmap.
//!
//! 10 million by default. A thousand million take about 125 MB and some minutes, so `.ci/long` runs them:
//!
//!   cargo test --release -p dunlin-seq --test bitmap -- --ignored --nocapture

use std::sync::Arc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_seq::Counter;
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig};

/// Concurrent calls of each client.
const AT_ONCE: usize = 64;

#[test]
fn no_number_comes_twice_across_a_wrap_of_the_lower_half() {
    draw(10_000_000);
}

#[test]
#[ignore = "some minutes"]
fn of_a_thousand_million_numbers_none_comes_twice() {
    draw(1_000_000_000);
}

/// Draws so many numbers, and looks each of them up.
fn draw(numbers: u64) {
    let started = std::time::Instant::now();
    // The wrap is in the middle.
    let start = (7 << 32) - numbers / 2;
    let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..LoopbackConfig::default() });
    let counter = Arc::new(Counter::starting_at(start).unwrap());
    let config = DirectServerConfig { incarnation: Some(1), ..DirectServerConfig::default() };
    let mut server = DirectServer::new(vec![network.endpoint(1).unwrap()], counter, config).unwrap();
    let mut clients: Vec<_> = (2..5)
        .map(|node| {
            let config = DirectConfig { first_tag: Some(node), calls_max: AT_ONCE, ..DirectConfig::default() };
            DirectClient::new(network.endpoint(node as u32).unwrap(), vec![Addr::Node(1)], config).unwrap()
        })
        .collect();
    let (mut bitmap, mut had, mut begun) = (vec![0u64; numbers.div_ceil(64) as usize], 0u64, 0u64);
    while had < numbers {
        for client in &mut clients {
            while begun < numbers && client.ask(begun).is_ok() {
                begun += 1;
            }
            client.poll(|_, result| {
                let at = result.unwrap() - start;
                let (word, bit) = (&mut bitmap[(at / 64) as usize], 1 << (at % 64));
                assert_eq!(*word & bit, 0, "{} came twice", start + at);
                *word |= bit;
                had += 1;
            });
        }
        while server.turn() > 0 {}
    }
    let wrong: u64 = clients.iter().map(|client| client.stats().wrong_guesses).sum();
    println!("{numbers} numbers from {start} on in {:.1?}, {wrong} wrong guesses", started.elapsed());
    // Nothing was lost, so there are no gaps; and each client guesses wrong for the requests in flight at the wrap.
    assert_eq!(bitmap.iter().map(|word| u64::from(word.count_ones())).sum::<u64>(), numbers);
    assert!((1..=3 * AT_ONCE as u64).contains(&wrong));
}
