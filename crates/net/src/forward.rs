//! [`forward_transport!`](crate::forward_transport): the forwarding methods of a transport wrapper.

/// Generates the named methods of a [`Transport`](crate::Transport), which forward to the wrapped transport.
///
/// The first word names the field that holds it. Also name the methods that have a default, unless you want the
/// default: a wrapper without [`route_mtu`](crate::Transport::route_mtu) would report a smaller MTU than the wrapped
/// transport has. `now` includes [`clock`](crate::Transport::clock) and [`boot_clock`](crate::Transport::boot_clock),
/// which belong to the same clock.
///
/// ```
/// use dunlin_net::{Transport, TxPacket};
///
/// /// Counts what is sent.
/// struct Counting<T> {
///     inner: T,
///     sent: usize,
/// }
///
/// impl<T: Transport> Transport for Counting<T> {
///     dunlin_net::forward_transport!(inner: mtu, route_mtu, rx_queue_len, local_addr, local_addrs, is_local, is_local_route);
///     dunlin_net::forward_transport!(inner: resolve, release, peer_health, tx_flush, tx_to, rx_burst, rx_packet, rx_source);
///     dunlin_net::forward_transport!(inner: now, wait, waker, wake_fd, arm, disarm, counters, is_mtu_certain, limit_joining);
///
///     fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
///         self.sent += packets.len();
///         self.inner.tx_burst(packets);
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_transport {
    ($inner:ident: $($method:ident),+) => { $($crate::forward_transport!(@$method $inner);)+ };
    (@mtu $inner:ident) => {
        fn mtu(&self) -> usize {
            self.$inner.mtu()
        }
    };
    (@route_mtu $inner:ident) => {
        fn route_mtu(&self, route: $crate::Route) -> usize {
            self.$inner.route_mtu(route)
        }
    };
    (@is_mtu_certain $inner:ident) => {
        fn is_mtu_certain(&self, route: $crate::Route) -> bool {
            self.$inner.is_mtu_certain(route)
        }
    };
    (@limit_joining $inner:ident) => {
        fn limit_joining(&mut self, route: $crate::Route, bytes: usize) {
            self.$inner.limit_joining(route, bytes);
        }
    };
    (@rx_queue_len $inner:ident) => {
        fn rx_queue_len(&self) -> usize {
            self.$inner.rx_queue_len()
        }
    };
    (@local_addr $inner:ident) => {
        fn local_addr(&self) -> $crate::Addr {
            self.$inner.local_addr()
        }
    };
    (@local_addrs $inner:ident) => {
        fn local_addrs(&self) -> ::std::vec::Vec<$crate::Addr> {
            self.$inner.local_addrs()
        }
    };
    (@is_local $inner:ident) => {
        fn is_local(&self) -> bool {
            self.$inner.is_local()
        }
    };
    (@is_local_route $inner:ident) => {
        fn is_local_route(&self, route: $crate::Route) -> bool {
            self.$inner.is_local_route(route)
        }
    };
    (@resolve $inner:ident) => {
        fn resolve(&mut self, addr: &$crate::Addr) -> ::std::result::Result<$crate::Route, $crate::NetError> {
            self.$inner.resolve(addr)
        }
    };
    (@release $inner:ident) => {
        fn release(&mut self, route: $crate::Route) {
            self.$inner.release(route);
        }
    };
    (@peer_health $inner:ident) => {
        fn peer_health(&mut self, route: $crate::Route) -> $crate::PeerHealth {
            self.$inner.peer_health(route)
        }
    };
    (@tx_burst $inner:ident) => {
        fn tx_burst(&mut self, packets: &[$crate::TxPacket<'_>]) {
            self.$inner.tx_burst(packets);
        }
    };
    (@tx_flush $inner:ident) => {
        fn tx_flush(&mut self) {
            self.$inner.tx_flush();
        }
    };
    (@tx_to $inner:ident) => {
        fn tx_to(&mut self, addr: &$crate::Addr, packet: &[u8]) -> ::std::result::Result<(), $crate::NetError> {
            self.$inner.tx_to(addr, packet)
        }
    };
    (@rx_burst $inner:ident) => {
        fn rx_burst(&mut self) -> usize {
            self.$inner.rx_burst()
        }
    };
    (@rx_packet $inner:ident) => {
        fn rx_packet(&self, i: usize) -> $crate::RxPacket<'_> {
            self.$inner.rx_packet(i)
        }
    };
    (@rx_source $inner:ident) => {
        fn rx_source(&self, i: usize) -> ::std::option::Option<$crate::Addr> {
            self.$inner.rx_source(i)
        }
    };
    (@now $inner:ident) => {
        fn now(&self) -> u64 {
            self.$inner.now()
        }

        fn clock(&self) -> ::std::option::Option<$crate::Clock> {
            self.$inner.clock()
        }

        fn boot_clock(&self) -> $crate::BootClock {
            self.$inner.boot_clock()
        }
    };
    (@wait $inner:ident) => {
        fn wait(&mut self, timeout: ::std::time::Duration) {
            self.$inner.wait(timeout);
        }
    };
    (@waker $inner:ident) => {
        fn waker(&self) -> $crate::Waker {
            self.$inner.waker()
        }
    };
    (@wake_fd $inner:ident) => {
        fn wake_fd(&mut self) -> ::std::result::Result<::std::os::fd::OwnedFd, $crate::NetError> {
            self.$inner.wake_fd()
        }
    };
    (@arm $inner:ident) => {
        fn arm(&mut self, timeout: ::std::time::Duration) -> $crate::Arm {
            self.$inner.arm(timeout)
        }
    };
    (@disarm $inner:ident) => {
        fn disarm(&mut self) {
            self.$inner.disarm();
        }
    };
    (@counters $inner:ident) => {
        fn counters(&self) -> $crate::TransportCounters {
            self.$inner.counters()
        }
    };
}
