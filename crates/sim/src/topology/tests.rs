use super::*;

#[test]
fn presets_make_sense_and_survive_toml() {
    let two_tier = Topology::two_tier(3, 16, 25, 2.0);
    assert_eq!(two_tier.oversubscription(), 2.0);
    for topology in [
        Topology::default(),
        Topology::cx4(),
        Topology::cx5(),
        Topology::cx5_100g(),
        Topology::one_switch(101, 100),
        two_tier,
    ] {
        topology.check().unwrap();
        assert_eq!(Topology::from_toml(&topology.to_toml()).unwrap(), topology);
    }
}

#[test]
fn a_file_needs_to_say_only_what_is_special() {
    let text = "[layout.two-tier]\ntors = 2\n[layout.two-tier.tor.buffer.per-port]\nbytes = 70000\n";
    let topology = Topology::from_toml(text).unwrap();
    let Layout::TwoTier(layout) = &topology.layout else { panic!("{topology:?}") };
    assert_eq!((layout.tors, layout.hosts_per_tor, layout.tor.buffer), (2, 8, Buffer::PerPort { bytes: 70_000 }));
    assert_eq!(layout.spine, Switch::default());
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    for (text, name) in [
        ("mtu = 10", "mtu"),
        ("[nic]\ngbit_per_s = 0", "nic.gbit_per_s"),
        ("[nic]\nrx_descriptors = 1", "nic.rx_descriptors"),
        ("[nic]\ntx_latency_ns = 99999999999", "nic.tx_latency_ns"),
        ("[layout.one-switch]\nhosts = 0", "number of hosts"),
        ("[layout.one-switch]\nhosts = 9000", "number of hosts"),
        ("[layout.two-tier]\ntors = 8000\nhosts_per_tor = 1\nspines = 8000", "number of links"),
        ("[layout.two-tier]\nspines = 0", "layout.two-tier.spines"),
        ("[layout.one-switch.switch.buffer.shared]\nbytes = 100000\nalpha = 0.0", "buffer alpha"),
        ("[layout.one-switch.switch.buffer.per-port]\nbytes = 100", "buffer bytes"),
        ("[layout.one-switch.switch.ecn]\nkmin_bytes = 2\nkmax_bytes = 1\npmax = 0.1", "ecn.kmin_bytes"),
        ("[layout.one-switch.switch.ecn]\nkmin_bytes = 0\nkmax_bytes = 1\npmax = 1.1", "ecn.pmax"),
        ("speed = 3", "speed"),
        ("[nic", "cannot read the topology"),
    ] {
        let message = Topology::from_toml(text).unwrap_err().to_string();
        assert!(message.contains(name), "{text}: {message}");
    }
}

#[test]
fn the_file_in_the_documentation_is_one() {
    let text = include_str!("../../../../docs/simulation.md");
    let (_, rest) = text.split_once("```toml\n").unwrap();
    let (file, _) = rest.split_once("```").unwrap();
    let topology = Topology::from_toml(file).unwrap();
    assert_eq!((topology.hosts(), topology.oversubscription()), (32, 2.0));
}
