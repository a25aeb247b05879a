//! Transports and threads, as the options say.

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, AnyTransport, Composite, NetError};

use super::addresses::of_core;
use super::error::ServerError;
use crate::routing::Core;

/// What a core listens on.
pub(super) enum Opened {
    One(AnyTransport),
    Both(Box<Composite<ShmTransport, UdpTransport>>),
}

/// Opens the transports of a core.
pub(super) fn open(listen: &[Addr], core: Core) -> Result<Opened, ServerError> {
    match listen {
        [] => Err(ServerError::NoAddress),
        [one] => first(one, core, AnyTransport::bind).map(Opened::One),
        [shm @ Addr::Shm(_), udp @ Addr::Udp(_)] | [udp @ Addr::Udp(_), shm @ Addr::Shm(_)] => {
            let near = first(shm, core, open_shm)?;
            let far = first(udp, core, open_udp)?;
            let both = Composite::new(near, far).map_err(|why| ServerError::Listen { addr: shm.clone(), why })?;
            Ok(Opened::Both(Box::new(both)))
        }
        [first, second, ..] => Err(ServerError::AddressKinds { first: first.clone(), second: second.clone() }),
    }
}

/// The first of a core's addresses that can be had. The error is that of the one that was meant.
fn first<T>(listen: &Addr, core: Core, bind: impl Fn(&Addr) -> Result<T, NetError>) -> Result<T, ServerError> {
    let failed = |why| ServerError::Listen { addr: listen.clone(), why };
    let mut error = None;
    for addr in of_core(listen, core).map_err(failed)? {
        match bind(&addr) {
            Ok(transport) => return Ok(transport),
            Err(why) => error = error.or(Some(ServerError::Listen { addr, why })),
        }
    }
    Err(error.unwrap_or(ServerError::NoAddress))
}

fn open_shm(addr: &Addr) -> Result<ShmTransport, NetError> {
    match addr {
        Addr::Shm(name) => ShmTransport::new(&ShmConfig::named(name.clone())),
        other => Err(NetError::WrongKind { addr: other.clone(), transport: "shared memory" }),
    }
}

fn open_udp(addr: &Addr) -> Result<UdpTransport, NetError> {
    match addr {
        Addr::Udp(addr) => UdpTransport::bind(UdpConfig::new(*addr)),
        other => Err(NetError::WrongKind { addr: other.clone(), transport: "UDP" }),
    }
}

/// Pins this thread to a processor.
pub(super) fn pin(processor: usize) -> Result<(), ServerError> {
    let failed = |why: std::io::Error| ServerError::Pin { processor, why };
    if processor >= rustix::thread::CpuSet::MAX_CPU {
        return Err(failed(std::io::Error::from(std::io::ErrorKind::InvalidInput)));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| failed(error.into()))
}
