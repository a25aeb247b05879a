//! Where a service is: an address, replicas, an etcd, or a name for one of them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dunlin_net::Addr;
use dunlin_smr::ClusterId;
use toml::{Table, Value};

use crate::commands::raft::cluster::Replicas;

/// Where the file of names is, if it is not at its usual place.
const FILE_VARIABLE: &str = "DUNLIN_CLUSTERS";

/// Where a service is.
#[derive(Debug, clap::Args)]
pub struct At {
    /// Where it is: shm:NAME or udp://HOST:PORT; for replicas ID=ADDRESS,..., all or some, more than half of them
    /// present members; or a name in clusters.toml
    #[arg(long = "at", value_name = "WHERE", env = "DUNLIN_AT")]
    place: Place,
}

impl At {
    /// The address of one server.
    pub fn server(&self) -> Result<&Addr> {
        self.place.server()
    }

    /// Replicas, and the number of their cluster if the file of names has it.
    pub fn replicas(&self) -> Result<(&Replicas, Option<ClusterId>)> {
        self.place.replicas()
    }

    /// The place itself.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The addresses of an etcd, if it is one.
    pub fn etcd(&self) -> Option<&[String]> {
        match &self.place {
            Place::Etcd(urls) => Some(urls),
            _ => None,
        }
    }
}

/// A place that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// One server.
    Server(Addr),
    /// Replicas, and the number of their cluster if it is known.
    Replicas(Replicas, Option<ClusterId>),
    /// An etcd.
    Etcd(Vec<String>),
}

impl Place {
    /// The address of one server.
    pub fn server(&self) -> Result<&Addr> {
        match self {
            Place::Server(addr) => Ok(addr),
            _ => bail!("this asks one server: give --at shm:NAME or udp://HOST:PORT"),
        }
    }

    /// Replicas, and the number of their cluster if it is known.
    pub fn replicas(&self) -> Result<(&Replicas, Option<ClusterId>)> {
        match self {
            Place::Replicas(replicas, cluster) => Ok((replicas, *cluster)),
            _ => bail!("this asks replicas: write --at ID=ADDRESS,..., for example 1=udp://127.0.0.1:7801"),
        }
    }

    /// Anything but a name.
    fn literal(text: &str) -> Result<Option<Place>> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Some(Place::Etcd(text.split(',').map(str::to_owned).collect())));
        }
        if text.contains('=') {
            return Ok(Some(Place::Replicas(text.parse()?, None)));
        }
        if text.contains([':', '/']) {
            return Ok(Some(Place::Server(text.parse()?)));
        }
        Ok(None)
    }

    /// What a file of names says: `NAME = "WHERE"`, or a table with `at` and `cluster`.
    fn of_entry(entry: &Value) -> Result<Place> {
        match entry {
            Value::String(at) => Place::of_text(at, None),
            Value::Table(table) => {
                let unknown = table.keys().find(|key| !matches!(key.as_str(), "at" | "cluster"));
                ensure!(unknown.is_none(), "{unknown:?} is neither `at` nor `cluster`");
                let at = table.get("at").and_then(Value::as_str).context("`at` is missing, or no text")?;
                let cluster = table.get("cluster").map(|cluster| cluster.as_str().context("`cluster` is no text"));
                Place::of_text(at, cluster.transpose()?)
            }
            _ => bail!("write NAME = \"WHERE\", or a table with `at` and `cluster`"),
        }
    }

    fn of_text(at: &str, cluster: Option<&str>) -> Result<Place> {
        let place = Place::literal(at)?.with_context(|| format!("{at:?} is no address"))?;
        match (place, cluster) {
            (place, None) => Ok(place),
            (Place::Replicas(replicas, _), Some(number)) => Ok(Place::Replicas(replicas, Some(number.parse()?))),
            _ => bail!("only replicas have a `cluster`"),
        }
    }
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Place> {
        match Place::literal(text)? {
            Some(place) => Ok(place),
            None => named(text, &file_of_names()?),
        }
    }
}

/// `$DUNLIN_CLUSTERS`, or `dunlin/clusters.toml` where the user's settings are.
fn file_of_names() -> Result<PathBuf> {
    if let Some(path) = env::var_os(FILE_VARIABLE) {
        return Ok(path.into());
    }
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let settings = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let settings = settings.with_context(|| format!("there is no HOME: set {FILE_VARIABLE}"))?;
    Ok(settings.join("dunlin/clusters.toml"))
}

fn named(name: &str, file: &Path) -> Result<Place> {
    let shown = file.display();
    let no_address = || anyhow!("{name:?} is no address (shm:NAME, udp://HOST:PORT, ID=ADDRESS,...)");
    let text =
        fs::read_to_string(file).map_err(|error| anyhow!("{}, and no name in {shown}: {error}", no_address()))?;
    let names: Table = text.parse().with_context(|| format!("{shown} is not TOML"))?;
    let entry = names.get(name).with_context(|| format!("{}, and no name in {shown}", no_address()))?;
    Place::of_entry(entry).with_context(|| format!("{name} in {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!("shm:kv".parse::<Place>().unwrap().server().unwrap().to_string(), "shm:kv");
        let replicas: Place = "1=shm:one,2=shm:two".parse().unwrap();
        assert_eq!(replicas.replicas().unwrap().0.0.len(), 2);
        assert!(replicas.server().unwrap_err().to_string().contains("this asks one server"));
        let etcd: Place = "http://127.0.0.1:1,http://127.0.0.1:2".parse().unwrap();
        assert!(matches!(&etcd, Place::Etcd(urls) if urls.len() == 2));
        assert!(etcd.replicas().is_err());
        for (text, why) in [
            ("127.0.0.1:7700", "shm:NAME or udp://HOST:PORT"),
            ("one=udp://127.0.0.1:1", "write ID=ADDRESS"),
            ("tcp://127.0.0.1:1", "shm:NAME or udp://HOST:PORT"),
        ] {
            let error = format!("{:#}", text.parse::<Place>().unwrap_err());
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn names_are_looked_up() {
        let path = env::temp_dir().join(format!("dunlin-test-clusters-{}.toml", std::process::id()));
        let text = "cache = \"shm:kv\"\nbad = 7\nnested = \"cache\"\n[prod]\nat = \"1=shm:one\"\n\
                    cluster = \"00000000000000a7\"\n[odd]\nat = \"shm:x\"\ncluster = \"0000000000000007\"\n\
                    [typo]\nad = \"shm:x\"\n";
        fs::write(&path, text).unwrap();
        assert_eq!(named("cache", &path).unwrap().server().unwrap().to_string(), "shm:kv");
        let (replicas, cluster) = (named("prod", &path).unwrap(), "00000000000000a7".parse().unwrap());
        assert_eq!(replicas.replicas().unwrap().1, Some(cluster));
        for (name, why) in [
            ("nobody", "\"nobody\" is no address"),
            ("bad", "write NAME = \"WHERE\""),
            ("nested", "is no address"),
            ("odd", "only replicas have"),
            ("typo", "neither `at` nor `cluster`"),
        ] {
            let error = format!("{:#}", named(name, &path).unwrap_err());
            assert!(error.contains(why), "{name}: {error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(named("cache", &path).unwrap_err().to_string().contains("no name in"));
    }
}
