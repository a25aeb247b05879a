//! Names of entries of the tree, and of leases.

use crate::error::CoordError;

/// Longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// Checks a path: `/` and a name, once or more, as in `/volumes/7/replicas`. Names are not empty and hold no control
/// characters; a path has at most [`PATH_BYTES_MAX`] bytes. Leases are named in the same way.
///
/// # Errors
/// [`CoordError::BadPath`], which says why.
pub fn check_path(path: &str) -> Result<(), CoordError> {
    let bad = |why: &str| Err(CoordError::BadPath { path: path.to_owned(), why: why.to_owned() });
    if path.len() > PATH_BYTES_MAX {
        return bad("it has more than 1024 bytes");
    }
    let Some(names) = path.strip_prefix('/') else { return bad("it does not begin with a slash") };
    if names.split('/').any(str::is_empty) {
        return bad("a name in it is empty");
    }
    if path.chars().any(char::is_control) {
        return bad("it holds a control character");
    }
    Ok(())
}

/// Checks the root of a subtree: a path, or `/` for all.
pub(crate) fn check_root(root: &str) -> Result<(), CoordError> {
    if root == "/" { Ok(()) } else { check_path(root) }
}

/// Whether a path is strictly below a root that was checked.
pub(crate) fn is_below(path: &str, root: &str) -> bool {
    root == "/" || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}

/// The prefix of all paths below a root.
pub(crate) fn below(root: &str) -> String {
    if root == "/" { root.to_owned() } else { format!("{root}/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked() {
        for good in ["/a", "/a/b", "/volumes/7/replicas", "/with space", "/ä"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for bad in ["", "/", "a", "a/b", "//", "/a/", "/a//b", "/a\n", "/a\0b", &long] {
            assert!(matches!(check_path(bad), Err(CoordError::BadPath { .. })), "{bad}");
        }
        assert_eq!(check_root("/"), Ok(()));
    }

    #[test]
    fn what_is_below_is_known_by_whole_names() {
        assert!(is_below("/a/b", "/a") && is_below("/a/b/c", "/a") && is_below("/a", "/"));
        assert!(!is_below("/a", "/a") && !is_below("/ab", "/a") && !is_below("/b/a", "/a"));
    }
}
