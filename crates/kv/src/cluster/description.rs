//! A cluster as its operator describes it: servers, partitions and replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::ops::RangeInclusive;

use dunlin_net::Addr;
use dunlin_store::tier::TIER_LABEL_BITS;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use thiserror::Error;

/// Servers of a cluster, at most.
pub const SERVERS_MAX: usize = 1024;
/// Partitions of a cluster, at most.
pub const PARTITIONS_MAX: u32 = 65_536;
/// Replicas of a partition, at most.
pub const REPLICAS_MAX: usize = 16;
/// Bytes of the name of a server or a cluster, at most.
pub const NAME_BYTES_MAX: usize = 64;
const PARTITIONS_DEFAULT: u32 = 256;
/// Bytes of a description, at most.
pub const DESCRIPTION_BYTES_MAX: usize = 256 << 10;

/// The keys of the hashes. All clients and servers of all versions must divide keys in the same way.
const OF_KEYS: [u8; 16] = *b"dunlin kv keys 1";
const OF_PLACES: [u8; 16] = *b"dunlin kv place1";
const OF_DESCRIPTIONS: [u8; 16] = *b"dunlin kv desc 1";

/// Why a description is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DescriptionError {
    /// It is not TOML, or has unknown keys, or a name twice.
    #[error("{0}")]
    Syntax(String),
    /// It is too long.
    #[error("a description of {0} bytes is longer than {DESCRIPTION_BYTES_MAX}")]
    TooLong(usize),
    /// A name is empty, too long, or has other characters.
    #[error("{0:?} is no name: use 1 to {NAME_BYTES_MAX} of the letters a to z and A to Z, digits, '.', '_' and '-'")]
    Name(String),
    /// The identity is missing, or is none.
    #[error("id = {0:?}: give 16 hexadecimal digits that no other cluster has; dunlin kv cluster new-id draws them")]
    Id(String),
    /// An address cannot be read.
    #[error("server {server} has the address {address:?}: {why}")]
    Address {
        /// The server.
        server: String,
        /// Its address.
        address: String,
        /// The cause.
        why: String,
    },
    /// Two servers have the same address.
    #[error("the servers {one} and {other} have the same address, {address}")]
    SameAddress {
        /// One of them.
        one: String,
        /// The other.
        other: String,
        /// The address.
        address: String,
    },
    /// There are no servers, or too many.
    #[error("a cluster has 1 to {SERVERS_MAX} servers, not {0}")]
    Servers(usize),
    /// There are more replicas than servers, or none.
    #[error("replicas = {replicas} with {servers} servers: give 1 to {}", servers.min(&REPLICAS_MAX))]
    Replicas {
        /// The number of replicas.
        replicas: usize,
        /// The number of servers.
        servers: usize,
    },
    /// The number of partitions is out of range.
    #[error("partitions = {0}: give 1 to {PARTITIONS_MAX}")]
    Partitions(u32),
}

/// The description as it is written.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    #[serde(default)]
    id: String,
    replicas: usize,
    #[serde(default = "partitions")]
    partitions: u32,
    servers: BTreeMap<String, String>,
}

fn partitions() -> u32 {
    PARTITIONS_DEFAULT
}

/// A server of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPlace {
    /// Its name. Placement depends on names only: a server may get another address.
    pub name: String,
    /// Where it is.
    pub address: Addr,
}

/// The servers of a cluster, and how keys are divided among them.
///
/// Keys belong to partitions by a hash, and each partition has its replicas on the servers that rendezvous hashing
/// ranks first. All clients and servers must have the same description, except for addresses; its
/// [fingerprint](Description::fingerprint) is compared.
///
/// ```
/// use dunlin_kv::cluster::Description;
///
/// let cluster = Description::parse(
///     r#"
///     name = "shop"
///     id = "3f0c7d9a51e84b26"
///     replicas = 2
///
///     [servers]
///     a = "udp://10.0.0.1:7700"
///     b = "udp://10.0.0.2:7700"
///     c = "udp://10.0.0.3:7700"
///     "#,
/// )?;
/// assert_eq!(cluster.replicas_of(cluster.partition(b"bird")).len(), 2);
/// # Ok::<(), dunlin_kv::cluster::DescriptionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    name: String,
    id: u64,
    servers: Vec<ServerPlace>,
    replicas: usize,
    partitions: u32,
    /// For each partition, its servers.
    places: Vec<u32>,
    fingerprint: u64,
}

/// Returns the partition of a key.
#[inline]
pub(crate) fn partition_of(key: &[u8], partitions: u32) -> u32 {
    partition_of_hash(hash_of(key), partitions)
}

#[inline]
fn hash_of(key: &[u8]) -> u32 {
    let mut hasher = SipHasher13::new_with_key(&OF_KEYS);
    hasher.write(key);
    (hasher.finish() >> 32) as u32
}

fn partition_of_hash(hash: u32, partitions: u32) -> u32 {
    ((u64::from(hash) * u64::from(partitions)) >> 32) as u32
}

/// Returns what the index of a tier says of a key's partition: the highest bits of the same hash.
pub(crate) fn label_of(key: &[u8]) -> u16 {
    (hash_of(key) >> (u32::BITS - TIER_LABEL_BITS)) as u16
}

/// Returns the partitions of the keys with a label: one, unless there are more partitions than labels, or a label is of
/// two.
pub(crate) fn partitions_of_label(label: u16, partitions: u32) -> RangeInclusive<u32> {
    let low = u32::from(label) << (u32::BITS - TIER_LABEL_BITS);
    partition_of_hash(low, partitions)..=partition_of_hash(low | u32::MAX >> TIER_LABEL_BITS, partitions)
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// [`DescriptionError`] if it contradicts itself.
    pub fn parse(text: &str) -> Result<Description, DescriptionError> {
        if text.len() > DESCRIPTION_BYTES_MAX {
            return Err(DescriptionError::TooLong(text.len()));
        }
        let text: Text = toml::from_str(text).map_err(|why| DescriptionError::Syntax(why.to_string()))?;
        let mut servers = Vec::new();
        for (name, address) in text.servers {
            let place = match address.parse() {
                Ok(place) => place,
                Err(why) => {
                    let why = format!("{why}");
                    return Err(DescriptionError::Address { server: name, address, why });
                }
            };
            servers.push(ServerPlace { name, address: place });
        }
        let is_id = text.id.len() == 16 && text.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u64::from_str_radix(&text.id, 16).ok().filter(|_| is_id);
        let id = id.ok_or_else(|| DescriptionError::Id(text.id.clone()))?;
        Description::new(&text.name, id, servers, text.replicas, text.partitions)
    }

    /// Describes a cluster. No other one may have its `id`: two clusters whose names are the same, and of which one has
    /// the address of a server of the other, would mix their items.
    ///
    /// # Errors
    /// [`DescriptionError`] if it contradicts itself.
    pub fn new(
        name: &str,
        id: u64,
        mut servers: Vec<ServerPlace>,
        replicas: usize,
        partitions: u32,
    ) -> Result<Description, DescriptionError> {
        check_name(name)?;
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        servers.iter().try_for_each(|server| check_name(&server.name))?;
        if !(1..=SERVERS_MAX).contains(&servers.len()) {
            return Err(DescriptionError::Servers(servers.len()));
        }
        if let Some(pair) = servers.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(DescriptionError::Syntax(format!("the name {} is there twice", pair[0].name)));
        }
        let mut addresses = BTreeMap::new();
        for server in &servers {
            let address = server.address.to_string();
            if let Some(one) = addresses.insert(address.clone(), &server.name) {
                return Err(DescriptionError::SameAddress { one: one.clone(), other: server.name.clone(), address });
            }
        }
        if !(1..=servers.len().min(REPLICAS_MAX)).contains(&replicas) {
            return Err(DescriptionError::Replicas { replicas, servers: servers.len() });
        }
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(DescriptionError::Partitions(partitions));
        }
        let places = (0..partitions).flat_map(|partition| ranked(partition, &servers, replicas)).collect();
        let mut hasher = SipHasher13::new_with_key(&OF_DESCRIPTIONS);
        hasher.write(format!("{name}\n{id:016x}\n{replicas}\n{partitions}\n").as_bytes());
        servers.iter().for_each(|server| hasher.write(format!("{}\n", server.name).as_bytes()));
        let fingerprint = hasher.finish();
        Ok(Description { name: name.to_owned(), id, servers, replicas, partitions, places, fingerprint })
    }

    /// Returns its text, which [`Description::parse`] reads.
    pub fn to_text(&self) -> String {
        let servers = self.servers.iter().map(|server| (server.name.clone(), server.address.to_string())).collect();
        let (name, id) = (self.name.clone(), format!("{:016x}", self.id));
        let text = Text { name, id, replicas: self.replicas, partitions: self.partitions, servers };
        toml::to_string(&text).expect("names, numbers and a table of strings are TOML")
    }

    /// Returns the name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what tells the cluster from others of its name.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the servers, in the order of their names.
    pub fn servers(&self) -> &[ServerPlace] {
        &self.servers
    }

    /// Returns the number of a server, by its name.
    pub fn server(&self, name: &str) -> Option<u32> {
        self.servers.iter().position(|server| server.name == name).map(|number| number as u32)
    }

    /// Returns the number of replicas of each partition.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Returns the partition of a key.
    #[inline]
    pub fn partition(&self, key: &[u8]) -> u32 {
        partition_of(key, self.partitions)
    }

    /// Returns the servers of a partition, in the order in which they decide about conditional writes.
    ///
    /// # Panics
    /// If there is no such partition.
    #[inline]
    pub fn replicas_of(&self, partition: u32) -> &[u32] {
        let first = partition as usize * self.replicas;
        &self.places[first..first + self.replicas]
    }

    /// Returns the partitions that a server has a replica of.
    pub fn partitions_of(&self, server: u32) -> BTreeSet<u32> {
        (0..self.partitions).filter(|partition| self.replicas_of(*partition).contains(&server)).collect()
    }

    /// Identifies the cluster and its division of keys: the name and the id of the cluster, the names of its servers, and
    /// the numbers of partitions and replicas. Addresses do not count.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

fn check_name(name: &str) -> Result<(), DescriptionError> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_valid) {
        Ok(())
    } else {
        Err(DescriptionError::Name(name.to_owned()))
    }
}

/// Returns the servers of a partition by rendezvous hashing (Thaler and Ravishankar, 1998): those with the highest hash
/// of partition and name. A server that comes or goes moves only the partitions that it has a replica of.
fn ranked(partition: u32, servers: &[ServerPlace], replicas: usize) -> Vec<u32> {
    let weight = |server: &ServerPlace| {
        let mut hasher = SipHasher13::new_with_key(&OF_PLACES);
        hasher.write(&partition.to_le_bytes());
        hasher.write(server.name.as_bytes());
        hasher.finish()
    };
    // Of equal hashes, which nobody will see, the first name wins.
    let mut all: Vec<(std::cmp::Reverse<u64>, u32)> =
        servers.iter().zip(0..).map(|(server, number)| (std::cmp::Reverse(weight(server)), number)).collect();
    all.sort_unstable();
    all.truncate(replicas);
    all.into_iter().map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(servers: usize, replicas: usize) -> Description {
        let servers = (0..servers).map(|number| ServerPlace {
            name: format!("s{number:03}"),
            address: format!("udp://10.0.{}.{}:7700", number / 250, number % 250).parse().unwrap(),
        });
        Description::new("test", 7, servers.collect(), replicas, 1000).unwrap()
    }

    proptest::proptest! {
        #[test]
        fn a_label_has_the_partition_of_its_keys(key in 0u64.., partitions in 1u32..=PARTITIONS_MAX) {
            let key = key.to_le_bytes();
            for partitions in [partitions, 3, 4_095, 4_096, 4_097, 5_000, PARTITIONS_MAX] {
                let of_label = partitions_of_label(label_of(&key), partitions);
                assert!(of_label.contains(&partition_of(&key, partitions)), "{of_label:?} of {partitions}");
                let most = 1 + partitions.div_ceil(1 << TIER_LABEL_BITS) as usize;
                assert!(of_label.count() <= most);
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let base =
            "name = \"shop\"\nid = \"00000000000000a7\"\nreplicas = 2\n[servers]\na = \"shm:a\"\nb = \"shm:b\"\n";
        assert!(Description::parse(base).is_ok());
        for (text, why) in [
            (base.replace("b = ", "a = "), "duplicate key"),
            (base.replace("shm:b", "shm:a"), "same address"),
            (base.replace("replicas = 2", "replicas = 3"), "give 1 to 2"),
            (base.replace("replicas = 2", "replicas = 0"), "give 1 to 2"),
            (base.replace("replicas = 2", "replicas = -1"), "replicas"),
            (base.replace("replicas = 2", "copies = 2"), "unknown field `copies`"),
            (base.replace("[servers]", "partitions = 0\n[servers]"), "partitions = 0"),
            (base.replace("[servers]", "partitions = 65537\n[servers]"), "give 1 to 65536"),
            (base.replace("shm:b", "10.0.0.1"), "server b"),
            (base.replace("b = ", "\"b c\" = "), "is no name"),
            (base.replace("\"shop\"", "\"\""), "is no name"),
            (base.replace("name = \"shop\"\n", ""), "missing field `name`"),
            ("name = \"shop\"\nid = \"00000000000000a7\"\nreplicas = 1\n[servers]\n".into(), "1 to 1024 servers"),
            (base.replace("00a7", "00a"), "dunlin kv cluster new-id"),
            (base.replace("00a7", "+0a7"), "16 hexadecimal digits"),
            (base.replace("id = ", "# id = "), "dunlin kv cluster new-id"),
            ("name".into(), "expected"),
        ] {
            let error = Description::parse(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = format!("# {}\n{base}", "x".repeat(DESCRIPTION_BYTES_MAX));
        assert!(matches!(Description::parse(&long), Err(DescriptionError::TooLong(_))));
    }

    #[test]
    fn what_is_written_is_read() {
        let cluster = cluster(5, 3);
        assert_eq!(Description::parse(&cluster.to_text()).unwrap(), cluster);
    }

    #[test]
    fn the_fingerprint_is_of_the_division_and_not_of_addresses() {
        let text = |extra: &str, address: &str| {
            format!(
                "name = \"shop\"\nid = \"00000000000000a7\"\nreplicas = 2\n{extra}\n[servers]\na = \"shm:a\"\nb = \"{address}\"\n"
            )
        };
        let fingerprint = |extra: &str, address: &str| Description::parse(&text(extra, address)).unwrap().fingerprint();
        let one = fingerprint("", "shm:b");
        assert_eq!(one, fingerprint("partitions = 256", "udp://10.0.0.1:1"));
        assert_ne!(one, fingerprint("partitions = 255", "shm:b"));
        let other = text("", "shm:b").replace("b = ", "c = ");
        assert_ne!(one, Description::parse(&other).unwrap().fingerprint());
        let other = text("", "shm:b").replace("00a7", "00a8");
        assert_ne!(one, Description::parse(&other).unwrap().fingerprint());
    }

    #[test]
    fn replicas_are_distinct_and_even() {
        let cluster = cluster(10, 3);
        let mut counts = [0u32; 10];
        for partition in 0..cluster.partitions() {
            let replicas = cluster.replicas_of(partition);
            assert_eq!(replicas.iter().collect::<BTreeSet<_>>().len(), 3);
            replicas.iter().for_each(|server| counts[*server as usize] += 1);
        }
        assert!(counts.iter().all(|count| (240..360).contains(count)), "{counts:?}");
        let all: usize = (0..10).map(|server| cluster.partitions_of(server).len()).sum();
        assert_eq!(all, 3000);
    }

    #[test]
    fn another_server_moves_only_what_it_gets() {
        let (before, after) = (cluster(10, 3), cluster(11, 3));
        let mut moved = 0;
        for partition in 0..before.partitions() {
            let name = |cluster: &Description, server: &u32| cluster.servers()[*server as usize].name.clone();
            let names = |cluster: &Description| -> BTreeSet<String> {
                cluster.replicas_of(partition).iter().map(|server| name(cluster, server)).collect()
            };
            let (before, after) = (names(&before), names(&after));
            let came: Vec<&String> = after.difference(&before).collect();
            assert!(came.is_empty() || came == ["s010"], "{came:?}");
            moved += came.len();
        }
        assert!((200..350).contains(&moved), "{moved} of 1000 partitions got the new server");
    }

    /// Clients and servers of different versions must agree.
    #[test]
    fn the_division_never_changes() {
        let cluster = cluster(10, 3);
        assert_eq!([&b"bird"[..], b"fish", b"0", b"dunlin"].map(|key| cluster.partition(key)), [223, 763, 236, 949]);
        assert_eq!(cluster.replicas_of(0), [6, 4, 1]);
    }
}
