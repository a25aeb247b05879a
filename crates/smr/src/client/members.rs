//! The replicas that a client knows, in the order in which it asks them: first the one that answered last.

use dunlin_net::Addr;

use crate::wire::members::MEMBERS_MAX;

/// Replicas that a client knows besides those that it was given: as many as a cluster has. A replica may name others
/// without end.
pub(super) const LEARNED_MAX: usize = MEMBERS_MAX;

#[derive(Debug, Clone)]
struct Member {
    id: u64,
    addr: Addr,
    /// Its place is not for others.
    is_given: bool,
}

/// Replicas and their addresses. There are few, so looking through them costs less than a map.
#[derive(Debug, Clone)]
pub(super) struct Members(Vec<Member>);

impl Members {
    /// Returns members that are never forgotten; of two with the same id, the later one.
    pub fn given(members: impl IntoIterator<Item = (u64, Addr)>) -> Members {
        let by_id: std::collections::BTreeMap<u64, Addr> = members.into_iter().collect();
        Members(by_id.into_iter().map(|(id, addr)| Member { id, addr, is_given: true }).collect())
    }

    /// Returns them in the order in which they are asked.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Addr)> + Clone {
        self.0.iter().map(|member| (member.id, &member.addr))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, id: u64) -> Option<&Addr> {
        self.iter().find(|(known, _)| *known == id).map(|(_, addr)| addr)
    }

    /// Returns the member with the next higher id, or the lowest.
    pub fn after(&self, id: u64) -> Option<u64> {
        let ids = || self.iter().map(|(id, _)| id);
        ids().filter(|known| *known > id).min().or_else(|| ids().min())
    }

    /// Notes where a replica is, and returns where it was. A new one is asked last. If there are too many, it takes the
    /// place of the one that was asked last so far.
    pub fn learn(&mut self, id: u64, addr: Addr) -> Option<Addr> {
        if let Some(member) = self.0.iter_mut().find(|member| member.id == id) {
            return Some(std::mem::replace(&mut member.addr, addr));
        }
        let mut learned = self.0.iter().enumerate().filter(|(_, member)| !member.is_given).map(|(place, _)| place);
        if let Some(last) = learned.clone().nth(LEARNED_MAX - 1).and_then(|_| learned.next_back()) {
            self.0.remove(last);
        }
        self.0.push(Member { id, addr, is_given: false });
        None
    }

    /// Notes that a replica answered: it is asked first.
    pub fn answered(&mut self, id: u64) {
        if let Some(place) = self.0.iter().position(|member| member.id == id) {
            self.0[..=place].rotate_right(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(members: &Members) -> Vec<u64> {
        members.iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn replicas_that_answered_are_asked_first_and_those_that_were_only_named_make_room() {
        let at = |id: u64| Addr::Node(id as u32);
        let mut members = Members::given([3, 1, 2].map(|id| (id, at(id))));
        for id in 4..=15 {
            assert_eq!(members.learn(id, at(id)), None);
            members.answered(id);
        }
        assert_eq!(ids(&members), (4..=15).rev().chain(1..=3).collect::<Vec<_>>());
        assert_eq!(members.learn(2, at(99)), Some(at(2)));
        for id in 100..10_000 {
            members.learn(id, at(id));
        }
        assert_eq!(members.len(), 3 + LEARNED_MAX);
        assert_eq!(ids(&members)[..15], (4..=15).rev().chain(1..=3).collect::<Vec<_>>());
        members.answered(9_999);
        assert_eq!((ids(&members)[0], members.get(9_998), members.get(2)), (9_999, None, Some(&at(99))));
    }

    #[test]
    fn the_next_id_is_found_at_the_end_of_all_numbers() {
        let mut members = Members::given([(u64::MAX, Addr::Node(1)), (4, Addr::Node(2))]);
        assert_eq!([0, 4, u64::MAX].map(|id| members.after(id)), [Some(4), Some(u64::MAX), Some(4)]);
        members.answered(u64::MAX);
        assert_eq!((ids(&members), members.after(u64::MAX)), (vec![u64::MAX, 4], Some(4)));
    }
}
