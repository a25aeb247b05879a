//! The simulator against queueing theory, and the policies in it. A failure prints its setting, including the seed.

use std::sync::Arc;

use dunlin_schedule::simulator::{
    Contender, Costs, Keys, Law, ReplicaChoice, Setting, Sizes, Trace, load_facts, simulate, slack_bounds,
};
use dunlin_schedule::{Levels, Policy};

/// One server of single reads.
fn one_server(slots: u32, law: Law, load: f64) -> Setting {
    Setting {
        clients: 1,
        servers: 1,
        slots,
        replicas: 1,
        partitions: 1,
        network: 0,
        service: 1_000_000,
        law,
        load,
        sizes: Sizes::Constant(1),
        requests: 400_000,
        ..Setting::default()
    }
}

fn mean_in_services(setting: &Setting) -> f64 {
    simulate(setting, &Contender::of(Policy::Fifo)).unwrap().latencies.mean() / setting.service as f64
}

#[test]
fn waiting_is_that_of_queueing_theory() {
    // Pollaczek and Khinchine: at load r, the wait with constant service is r / 2(1 - r) services, and with exponential
    // service twice that.
    for (law, load, expected) in [
        (Law::Constant, 0.5, 1.5),
        (Law::Constant, 0.8, 3.0),
        (Law::Exponential, 0.5, 2.0),
        (Law::Exponential, 0.8, 5.0),
    ] {
        let setting = one_server(1, law, load);
        let mean = mean_in_services(&setting);
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean}, expected {expected}: {setting:?}");
    }
    // Erlang C for 8 slots at 75 %: 0.3569 of the requests wait, each 1 / (8 * 0.25) services.
    let setting = one_server(8, Law::Exponential, 0.75);
    let mean = mean_in_services(&setting);
    let expected = 1.0 + erlang_c(8, 6.0) / 2.0;
    assert!((mean / expected - 1.0).abs() < 0.02, "{mean}, expected {expected}: {setting:?}");
}

/// Probability of waiting in a queue with this many servers and this much work.
fn erlang_c(servers: u32, work: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 0.0);
    for server in 0..servers {
        sum += term;
        term *= work / f64::from(server + 1);
    }
    let waiting = term * f64::from(servers) / (f64::from(servers) - work);
    waiting / (sum + waiting)
}

fn small(load: f64) -> Setting {
    Setting { requests: 20_000, load, ..Setting::default() }
}

#[test]
fn the_load_is_the_one_asked_for() {
    for sizes in [Sizes::Soundcloud, Sizes::LogNormal { mu: 2.5, sigma: 1.25 }, Sizes::Constant(50)] {
        let setting = Setting { sizes, requests: 100_000, ..small(0.75) };
        let outcome = simulate(&setting, &Contender::of(Policy::Fifo)).unwrap();
        assert!((outcome.utilization - 0.75).abs() < 0.03, "{}: {setting:?}", outcome.utilization);
        assert_eq!(outcome.latencies.count(), 100_000);
    }
}

/// If the load exceeds the slots, no slot is ever idle, and every request is answered after the load ends.
#[test]
fn overload_keeps_all_slots_busy() {
    let setting = Setting { requests: 20_000, ..small(2.0) };
    for contender in every_contender() {
        let outcome = simulate(&setting, &contender).unwrap();
        assert!((0.97..=1.0).contains(&outcome.utilization), "{}: {contender:?}: {setting:?}", outcome.utilization);
        assert!(outcome.hottest <= 1.0, "{}: {contender:?}: {setting:?}", outcome.hottest);
        assert_eq!(outcome.latencies.count(), 20_000, "{contender:?}: {setting:?}");
    }
}

#[test]
fn a_seed_names_the_run() {
    for contender in every_contender() {
        let run = |seed| simulate(&Setting { seed, ..small(0.75) }, &contender).unwrap();
        assert_eq!(run(3), run(3), "{contender:?}");
        assert_ne!(run(3), run(4), "{contender:?}");
    }
}

fn every_contender() -> Vec<Contender> {
    let levels = Levels::default();
    [
        Policy::Fifo,
        Policy::ShortestTotal,
        Policy::ShortestBottleneck,
        Policy::SlackDriven(Default::default()),
        Policy::MlqShortestBottleneck(levels.clone()),
        Policy::MlqSlackDriven(levels.clone()),
        Policy::Rein(levels.clone()),
    ]
    .map(Contender::of)
    .into_iter()
    .chain([Contender::Oracle(levels), Contender::ShortestRemaining, Contender::shipped()])
    .collect()
}

/// Work is conserved: whatever the order, nothing is lost, and single reads of equal rank are served in order. If all
/// service times are equal, contenders that know more than sizes have no advantage either, except the oracle, which
/// knows queues: then operations change places, and the mean is that of any other order.
#[test]
fn without_sizes_there_is_nothing_to_schedule() {
    for law in [Law::Exponential, Law::Constant] {
        let setting = Setting { sizes: Sizes::Constant(1), law, ..small(0.9) };
        let fifo = simulate(&setting, &Contender::of(Policy::Fifo)).unwrap().latencies;
        for contender in every_contender() {
            let ours = simulate(&setting, &contender).unwrap().latencies;
            assert_eq!(ours.count(), fifo.count());
            match contender {
                Contender::Oracle(_) | Contender::ShortestRemaining if law == Law::Exponential => {}
                Contender::Oracle(_) => {
                    let ratio = ours.mean() / fifo.mean();
                    assert!((ratio - 1.0).abs() < 0.01, "{ratio}: {contender:?}: {setting:?}");
                }
                _ => assert!(ours == fifo, "{contender:?}: {setting:?}"),
            }
        }
    }
}

#[test]
fn every_choice_of_replicas_runs_with_every_contender() {
    for choice in [
        ReplicaChoice::RoundRobin,
        ReplicaChoice::Drawn,
        ReplicaChoice::DrawnPerOpset,
        ReplicaChoice::LeastOutstanding,
        ReplicaChoice::C3,
    ] {
        for partitions in [64, 128, 8192] {
            let keys = Keys::Zipf { keys: 1_000_000, skew: 0.6 };
            let setting = Setting { choice, partitions, keys, requests: 2_000, ..small(0.75) };
            for contender in every_contender() {
                let outcome = simulate(&setting, &contender).unwrap();
                assert_eq!(outcome.latencies.count(), 2_000, "{contender:?}: {setting:?}");
            }
        }
    }
}

/// As the thesis reports for C3: the tail is shorter than with FIFO.
#[test]
fn choosing_replicas_shortens_the_tail() {
    let p99 = |choice| {
        let setting = Setting { requests: 50_000, choice, ..small(0.75) };
        simulate(&setting, &Contender::of(Policy::Fifo)).unwrap().latencies.quantile(0.99)
    };
    let drawn = p99(ReplicaChoice::Drawn);
    for choice in [ReplicaChoice::LeastOutstanding, ReplicaChoice::C3] {
        assert!(p99(choice) < drawn, "{choice:?}: {} and {drawn}", p99(choice));
    }
}

/// The goals of the shipped policy, with some margin for a run this short: compared with FIFO, and with the exact
/// order.
#[test]
fn the_shipped_policy_is_near_the_exact_one() {
    let setting = Setting { requests: 100_000, choice: ReplicaChoice::Drawn, ..small(0.9) };
    let at = |contender: &Contender| {
        let latencies = simulate(&setting, contender).unwrap().latencies;
        [0.5, 0.95, 0.99].map(|share| latencies.quantile(share) as f64)
    };
    let (fifo, exact) = (at(&Contender::of(Policy::Fifo)), at(&Contender::of(Policy::ShortestTotal)));
    let shipped = at(&Contender::shipped());
    for (place, gain) in [2.2, 2.0, 1.8].into_iter().enumerate() {
        assert!(fifo[place] / shipped[place] > gain, "{fifo:?} and {shipped:?}: {setting:?}");
        assert!(exact[place] / shipped[place] > 0.95, "{exact:?} and {shipped:?}: {setting:?}");
    }
}

#[test]
fn knowing_service_times_helps_where_they_differ() {
    let setting = Setting { law: Law::TwoTiers { slow: 0.33, times: 20.0 }, requests: 50_000, ..small(0.9) };
    let median = |costs| {
        let Contender::Scheduled(mut scheduled) = Contender::of(Policy::ShortestTotal) else { unreachable!() };
        scheduled.costs = costs;
        simulate(&setting, &Contender::Scheduled(scheduled)).unwrap().latencies.quantile(0.5)
    };
    assert!(median(Costs::ServiceTime) < median(Costs::Count), "{setting:?}");
}

#[test]
fn slack_grows_with_load() {
    let bounds = |load| slack_bounds(&small(load)).unwrap();
    let (idle, busy) = (bounds(0.1), bounds(0.9));
    assert!(busy.upper > idle.upper && busy.lower > idle.lower, "{idle:?}, {busy:?}");
    assert!(busy.lower < busy.upper && idle.lower < idle.upper, "{idle:?}, {busy:?}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refusal = |setting| simulate(&setting, &Contender::shipped()).unwrap_err().to_string();
    let setting = Setting::default();
    assert!(refusal(Setting { servers: 0, ..setting.clone() }).contains("servers"));
    assert!(refusal(Setting { replicas: 4, servers: 3, ..setting.clone() }).contains("4 replicas on 3 servers"));
    assert!(refusal(Setting { load: 0.0, ..setting.clone() }).contains("load"));
    assert!(refusal(Setting { load: f64::NAN, ..setting.clone() }).contains("load"));
    assert!(refusal(Setting { keys: Keys::Zipf { keys: 10, skew: 1.0 }, ..setting.clone() }).contains("skew"));
    let sizes = Sizes::LogNormal { mu: f64::INFINITY, sigma: 1.0 };
    assert!(refusal(Setting { sizes, ..setting.clone() }).contains("sizes"));
    let law = Law::TwoTiers { slow: 1.5, times: 2.0 };
    assert!(refusal(Setting { law, ..setting.clone() }).contains("service times"));
    assert!(refusal(Setting { keys: Keys::Uniform(0), ..setting }).contains("keys"));
}

/// The four statistics that the thesis publishes of its trace (Figure 3.3).
#[test]
fn the_stand_in_meets_the_published_facts() {
    let setting = Setting { keys: Keys::SOUNDCLOUD, ..Setting::default() };
    let facts = load_facts(&setting).unwrap();
    assert!((0.39..=0.41).contains(&facts.several), "{facts:?}: {setting:?}");
    assert!((8.3..=8.9).contains(&facts.mean), "{facts:?}: {setting:?}");
    assert!((1900..=2000).contains(&facts.most), "{facts:?}: {setting:?}");
    assert!((800..=1200).contains(&facts.hottest), "{facts:?}: {setting:?}");
    assert!(facts.once > 0.5, "{facts:?}: {setting:?}");
}

/// Every request of a trace runs with its own keys, and the load is that of its mean size.
#[test]
fn a_trace_is_replayed() {
    // Single reads, and one request of 31 keys in ten.
    let lines: Vec<String> = (0..10u32)
        .map(|request| (0..if request == 9 { 31 } else { 1 }).map(|key| format!("{request}-{key}")).collect::<Vec<_>>())
        .map(|keys| keys.join(","))
        .collect();
    let trace = Trace::read(lines.join("\n").as_bytes()).unwrap();
    let setting = Setting { trace: Some(Arc::new(trace)), requests: 10_000, law: Law::Constant, ..small(0.2) };
    let facts = load_facts(&setting).unwrap();
    assert_eq!((facts.several, facts.mean, facts.most, facts.hottest, facts.once), (0.1, 4.0, 31, 1000, 0.0));
    let outcome = simulate(&setting, &Contender::of(Policy::Fifo)).unwrap();
    // Half of the measured number comes before, and a twentieth after: 31 keys and nine single ones in ten requests.
    assert_eq!((outcome.operations, outcome.latencies.count()), (15_500 * 4, 10_000));
    assert!((outcome.utilization - 0.2).abs() < 0.01, "{}", outcome.utilization);
}
