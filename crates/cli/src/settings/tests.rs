//! A small command, and files for it.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::{ArgAction, Parser, Subcommand};

use super::*;

#[derive(Debug, Parser)]
#[command(name = "test")]
struct Arguments {
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Commands,
}

#[derive(Debug, Subcommand)]
enum Commands {
    Serve(Serve),
    Ask,
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Where it listens
    address: Vec<String>,
    /// How many cores it has
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    cores: u16,
    #[arg(long, value_delimiter = ',')]
    pin: Vec<usize>,
    #[arg(long)]
    id: Option<u64>,
    #[arg(long, required_unless_present = "memory", conflicts_with = "memory")]
    data: Option<String>,
    #[arg(long)]
    memory: bool,
    #[command(flatten)]
    _source: Source,
}

/// A file that is removed at the end of its test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(text: &str) -> TestFile {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dunlin-test-settings-{}-{number}", std::process::id()));
        fs::write(&path, text).unwrap();
        TestFile(path)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn parse_with(text: &str, words: &[&str]) -> Result<Parsed<Arguments>, Refusal> {
    let file = TestFile::new(text);
    let path = file.0.to_str().unwrap();
    let all = ["test", "serve", "--config", path].into_iter().chain(words.iter().copied());
    parse(all.map(OsString::from).collect())
}

fn serve(text: &str, words: &[&str]) -> (u8, Serve) {
    match parse_with(text, words) {
        Ok(Parsed::Run(Arguments { verbose, command: Commands::Serve(serve) })) => (verbose, serve),
        Ok(_) => panic!("something else was parsed"),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

fn refusal(text: &str, words: &[&str]) -> String {
    match parse_with(text, words) {
        Ok(_) => panic!("{text:?} is accepted"),
        Err(Refusal::File(error)) => error.to_string(),
        Err(Refusal::Arguments { error, file }) => format!("{} (with {})", file::what(&error), file.is_some()),
    }
}

#[test]
fn a_file_says_what_the_command_line_could_and_that_wins() {
    let text = "cores = 3\npin = [0, 2, 4]\nid = \"7\"\nmemory = true\naddress = [\"a\", \"b\"]\nverbose = 2\n";
    let (verbose, told) = serve(text, &[]);
    assert_eq!((verbose, told.cores, told.id, told.memory), (2, 3, Some(7), true));
    assert_eq!((&told.pin[..], &told.address[..]), (&[0, 2, 4][..], &["a".to_owned(), "b".to_owned()][..]));

    let (verbose, told) = serve(text, &["-v", "--cores", "5", "--pin=1,3", "c"]);
    assert_eq!((verbose, told.cores, &told.pin[..], &told.address[..]), (1, 5, &[1, 3][..], &["c".to_owned()][..]));
    assert_eq!(told.id, Some(7), "what the command line does not say is as in the file");
}

#[test]
fn what_the_command_line_excludes_is_left_out() {
    let (_, told) = serve("memory = true", &["--data", "here"]);
    assert_eq!((told.memory, told.data.as_deref()), (false, Some("here")));
    let (_, told) = serve("data = \"here\"", &["--memory"]);
    assert_eq!((told.memory, told.data), (true, None));
    let told = refusal("memory = true\ndata = \"here\"", &[]);
    assert!(told.contains("cannot be used with") && told.contains("(with true)"), "{told}");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_name() {
    let told = refusal("core = 3", &["--memory"]);
    assert!(told.contains("`test serve` has no setting \"core\"; did you mean \"cores\"?"), "{told}");
    let told = refusal("frobnicate = 3", &["--memory"]);
    assert!(told.contains("no setting \"frobnicate\"; --print-config lists them"), "{told}");
    for key in ["config = \"other\"", "print-config = true", "help = true", "[serve]"] {
        assert!(refusal(key, &["--memory"]).contains("no setting"), "{key}");
    }
}

#[test]
fn values_that_cannot_be_are_refused_even_if_the_command_line_overrules_them() {
    for (text, why) in [
        ("cores = 0", "cores: invalid value '0'"),
        ("cores = \"many\"", "cores: invalid value 'many'"),
        ("cores = [1, 2]", "cores: give one value, not several"),
        ("cores = true", "cores: give a text or a number; this is of type boolean"),
        ("memory = 1", "memory: give true or false"),
        ("verbose = true", "verbose: give a number"),
        ("id = 1979-05-27", "id: give a text or a number; this is of type datetime"),
        ("pin = [[1]]", "pin: give a text or a number; this is of type array"),
        ("cores = 1\ncores = 2", "is not TOML: line 2: duplicate key"),
    ] {
        for words in [&["--memory"][..], &["--memory", "--cores", "2"]] {
            let told = refusal(text, words);
            assert!(told.contains(why), "{told}");
        }
    }
    let nowhere = parse::<Arguments>(["test", "serve", "--config", "/nowhere/x"].map(OsString::from).into());
    assert!(matches!(nowhere, Err(Refusal::File(FileError::Unreadable { .. }))));
    assert!(refusal(&format!("# {}", "x".repeat(1 << 20)), &[]).contains("1048576 bytes at most"));
}

#[test]
fn required_settings_may_come_from_either() {
    assert!(refusal("cores = 2", &[]).contains("required"));
    assert_eq!(serve("data = \"here\"", &[]).1.data.as_deref(), Some("here"));
}

#[test]
fn what_is_printed_is_read_back() {
    let printed = |text: &str, words: &[&str]| match parse_with(text, words) {
        Ok(Parsed::Print(text)) => text,
        _ => panic!("nothing was printed"),
    };
    let defaults = printed("", &["--print-config"]);
    for line in ["# How many cores it has", "cores = 1", "# id = \"ID\"", "# pin = [\"PIN\"]", "memory = false"] {
        assert!(defaults.lines().any(|found| found == line), "{line} is not in\n{defaults}");
    }
    assert_eq!(printed(&defaults, &["--print-config"]), defaults);
    let text = "cores = 3\npin = [0, 2]\ndata = \"a b\\\\c\"\naddress = [\"-\"]\nverbose = 1\n";
    let all = printed(text, &["--print-config", "--id", "9"]);
    for line in ["cores = 3", "pin = [0, 2]", "id = 9", "verbose = 1", "address = [\"-\"]"] {
        assert!(all.lines().any(|found| found == line), "{line} is not in\n{all}");
    }
    assert_eq!(printed(&all, &["--print-config"]), all);
    let (verbose, told) = serve(&all, &[]);
    assert_eq!((verbose, told.cores, told.data.as_deref(), told.id), (1, 3, Some("a b\\c"), Some(9)));
}

#[test]
fn commands_without_a_file_and_calls_for_help_are_as_before() {
    let parse = |words: &[&str]| parse::<Arguments>(words.iter().map(OsString::from).collect());
    assert!(matches!(parse(&["test", "ask"]), Ok(Parsed::Run(Arguments { command: Commands::Ask, .. }))));
    let kind = |words: &[&str]| match parse(words) {
        Err(Refusal::Arguments { error, .. }) => error.kind(),
        _ => panic!("{words:?} is accepted"),
    };
    assert_eq!(kind(&["test", "serve", "--help"]), ErrorKind::DisplayHelp);
    assert_eq!(kind(&["test"]), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    assert_eq!(kind(&["test", "ask", "--config", "x"]), ErrorKind::UnknownArgument);
}
