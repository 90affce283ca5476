//! Who a client is: a name that it gives, to which its memory is counted.

/// Maximum length of a name.
pub const TENANT_MAX: usize = 63;

/// What a client says of itself before it opens a session.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Introduction {
    /// The tenant to which its memory is counted; empty: it names none.
    pub name: String,
    /// What it has at this server it has elsewhere too, so that it can move it away.
    pub moves: bool,
}

/// In the first byte of an introduction.
const MOVES: u8 = 1;

/// Why a name is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a name for a tenant: 1 to {TENANT_MAX} letters, digits and . _ - are taken, a letter or digit first"
)]
pub struct TenantError(pub String);

/// Whether a tenant may have this name.
pub fn check_tenant(name: &str) -> Result<(), TenantError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= TENANT_MAX && name.bytes().all(fits) {
        Ok(())
    } else {
        Err(TenantError(name.to_owned()))
    }
}

impl Introduction {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.moves { MOVES } else { 0 });
        out.extend_from_slice(self.name.as_bytes());
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Introduction> {
        let (flags, name) = body.split_first()?;
        let name = std::str::from_utf8(name).ok()?;
        let fits = name.is_empty() || check_tenant(name).is_ok();
        fits.then(|| Introduction { name: name.to_owned(), moves: flags & MOVES != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_where_they_arrive() {
        for name in ["a", "alice", "team-1.batch_2", &"x".repeat(TENANT_MAX)] {
            assert_eq!(check_tenant(name), Ok(()));
        }
        for name in ["", ".x", "-x", "a b", "a\n", "ä", "a/b", &"x".repeat(TENANT_MAX + 1)] {
            let error = check_tenant(name).unwrap_err();
            assert!(error.to_string().contains("letters, digits"), "{error}");
            let body = [&[0], name.as_bytes()].concat();
            assert_eq!(Introduction::decode(&body).is_some(), name.is_empty(), "{name}");
        }
        assert_eq!(Introduction::decode(&[]), None);
        assert_eq!(Introduction::decode(b"\x01\xff"), None);
    }
}
