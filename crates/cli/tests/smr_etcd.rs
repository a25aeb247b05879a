//! The comparison with an etcd runs to completion, with rows of both. Without an etcd it has only our rows, and says
//! why; if `DUNLIN_ETCD` is set there must be one.

use std::time::Duration;

use dunlin_bench::experiments::find;
use dunlin_lab::Settings;
use dunlin_lab::peer::Launcher;
use dunlin_serve::Interrupt;

#[test]
fn replicas_are_measured_beside_an_etcd() {
    let launcher = Launcher::of_program(env!("CARGO_BIN_EXE_dunlin"), Interrupt::default());
    let settings = Settings { run: Duration::from_millis(100), runs: 1, repeats: 0, ..Settings::default() };
    let outcome = find(&["smr-etcd".to_owned()]).unwrap()[0].run(settings, launcher).unwrap();
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let rows_of = |who: &str| {
        let rows = outcome.report.rows.iter().filter(|row| row.case.starts_with(who));
        rows.inspect(|row| assert!(row.value.is_finite() && row.value > 0.0, "{row:?}")).count()
    };
    // Two storages, two operations, two numbers of clients; requests, p50 and p99 of each.
    assert_eq!((rows_of("Dunlin over shm, "), rows_of("Dunlin over udp, ")), (24, 24));
    if rows_of("etcd, ") != 24 {
        assert!(std::env::var_os("DUNLIN_ETCD").is_none(), "there must be an etcd");
        println!("SKIPPED: there is no etcd here; install Debian's etcd-server");
    }
}
