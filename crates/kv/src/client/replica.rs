//! What clusters ask of one server that is a replica.

use dunlin_net::Transport;
use dunlin_rpc::{CallError, MsgBuf};

use super::KvClient;
use super::error::KvError;
use super::operations::{InFlight, check_value, is_pushed_back};
use crate::wire::{
    FILL, Operation, PartitionScan, REPLICA, REPLICATE, ReplicaInfo, ReplicaState, Replicate, SCAN_PARTITIONS, Status,
    TURN, Turn, Turned, Verdict,
};

/// Attempts of a write that reached a core which does not own its key.
const ATTEMPTS_MAX: u32 = 3;

impl<T: Transport + 'static> KvClient<T> {
    /// Has all later operations fail once the server is restarted: with [`KvError::Restarted`], before anything is
    /// sent.
    pub(crate) fn pin(&self, incarnation: u64) {
        self.connection.pin(incarnation);
    }

    /// Asks every core what it is.
    pub(crate) async fn replica_infos(&self) -> Result<Vec<ReplicaInfo>, KvError> {
        let links = self.connection.links().await?;
        let mut infos = Vec::new();
        for core in &links.cores {
            let response = match self.ask_with(&links, core, REPLICA, MsgBuf::with_len(0)?).await {
                Err(KvError::Call { error: CallError::NoHandler }) => return Err(KvError::Unsupported),
                response => response?,
            };
            infos.push(ReplicaInfo::parse(&response).ok_or(KvError::BadAnswer)?);
        }
        Ok(infos)
    }

    /// Has every core change its state, one after the other, until one refuses. Returns the status, and whether any of
    /// them took writes until then. The order is always the same: cores rely on it that the first one is told first.
    pub(crate) async fn turn(&self, turn: Turn) -> Result<(Status, bool), KvError> {
        let links = self.connection.links().await?;
        let mut took_writes = false;
        for core in &links.cores {
            loop {
                let response = self.ask_with(&links, core, TURN, MsgBuf::copy_from(&turn.encode())?).await?;
                let Turned { status, before } = Turned::parse(&response).ok_or(KvError::BadAnswer)?;
                took_writes |= before != ReplicaState::Closed;
                match status {
                    Status::Done => break,
                    Status::Later => {}
                    status => return Ok((status, took_writes)),
                }
            }
        }
        Ok((Status::Done, took_writes))
    }

    /// Writes to this replica. Writes that a busy core pushes back are retried until the deadline.
    pub(crate) async fn replicate(&self, head: &Replicate, operation: &Operation<'_>) -> Result<Verdict, KvError> {
        let deadline = self.deadline();
        let (mut attempts, mut pushed_back) = (1, 0);
        loop {
            let links = self.connection.links().await?;
            check_value(&links, operation)?;
            let core = links.owner(operation.key());
            let request = MsgBuf::written(Replicate::BYTES + operation.encoded_len(), |out| {
                let (head_bytes, rest) = out.split_at_mut(Replicate::BYTES);
                head.encode(head_bytes);
                Replicate::BYTES + operation.encode(rest)
            })?;
            let options = Self::time_left(deadline, self.connection.endpoint.now())?;
            let lane = &core.lanes[core.choose()];
            let counted = InFlight::new(&lane.in_flight);
            let reply = lane.session.call_with(REPLICATE, request, options).await;
            drop(counted);
            self.connection.used(&links);
            match reply {
                Ok(reply) => match Verdict::parse(&reply.response).ok_or(KvError::BadAnswer)? {
                    Verdict::NotOwned if attempts < ATTEMPTS_MAX => {
                        self.connection.leave(&links);
                        attempts += 1;
                    }
                    verdict => return Ok(verdict),
                },
                Err(failure) if is_pushed_back(&failure.error) => {
                    if !self.connection.wait_for_busy_core(pushed_back, deadline).await {
                        return Err(KvError::Call { error: failure.error });
                    }
                    pushed_back += 1;
                }
                Err(failure) if matches!(failure.error, CallError::NoHandler) => return Err(KvError::Unsupported),
                Err(failure) => return Err(self.failed(&links, failure.error)),
            }
        }
    }

    /// Returns the items of some partitions that a core has from a hash on: the response to a [`PartitionScan`].
    pub(crate) async fn scan_partitions(&self, core: u16, scan: &PartitionScan<'_>) -> Result<MsgBuf, KvError> {
        let response = self.ask_until_taken(core, SCAN_PARTITIONS, &scan.encode()).await?;
        match Status::of(&response) {
            Some(Status::Closed) => Err(KvError::Closed { server: self.connection.server.clone() }),
            Some(Status::Done) => Ok(response),
            _ => Err(KvError::BadAnswer),
        }
    }

    /// Sends items to a core that is being filled.
    pub(crate) async fn fill(&self, core: u16, request: &[u8]) -> Result<Status, KvError> {
        let response = self.ask_until_taken(core, FILL, request).await?;
        Status::of(&response).ok_or(KvError::BadAnswer)
    }

    /// Asks a core, again and again if it pushes the request back, until the deadline: its tier may be behind.
    async fn ask_until_taken(&self, core: u16, req_type: u8, request: &[u8]) -> Result<MsgBuf, KvError> {
        let (deadline, mut pushed_back) = (self.deadline(), 0);
        loop {
            let links = self.connection.links().await?;
            if core >= links.map.routing.cores() {
                return Err(KvError::Moved { server: self.connection.server.clone() });
            }
            let request = MsgBuf::copy_from(request)?;
            let asked = self.ask_until(deadline, &links, links.core(core), req_type, request).await;
            let is_busy = matches!(&asked, Err(KvError::Call { error }) if is_pushed_back(error));
            if !is_busy || !self.connection.wait_for_busy_core(pushed_back, deadline).await {
                return asked;
            }
            pushed_back += 1;
        }
    }
}
