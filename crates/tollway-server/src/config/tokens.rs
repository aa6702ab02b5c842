//! Tokens: given, or in a file, or in the environment.

use super::error::ConfigError;
use super::reader::{ConfigValue, Table};
use crate::auth::{Auth, Role};

/// Reads one token, and adds it to those that are known.
pub(super) fn read(place: &ConfigValue<'_>, auth: &mut Auth) -> Result<(), ConfigError> {
    let inner = place.table()?;
    let role = inner.need("role").and_then(|place| role(&place));
    let (role, token) = (inner.tell(role), token(&inner)?);
    if let Some(file) = inner.text("token_file") {
        auth.add_file(file);
    }
    if token.is_empty() {
        return Err(place.wrong("the token is empty"));
    }
    let (name, role) = (inner.text("name"), role.unwrap_or(Role::Read));
    inner.finish();
    match name {
        Some(name) => auth.add_named(&token, role, &name),
        None => auth.add(&token, role),
    }
    Ok(())
}

fn token(table: &Table<'_>) -> Result<String, ConfigError> {
    match (table.get("token"), table.get("token_file"), table.get("token_env")) {
        (Some(place), None, None) => place.text(),
        (None, Some(place), None) => {
            let text = std::fs::read_to_string(place.text()?);
            let text = text.map_err(|error| place.wrong(format!("cannot be read: {error}")))?;
            Ok(text.trim().to_owned())
        }
        (None, None, Some(place)) => {
            let name = place.text()?;
            std::env::var(&name).map_err(|_| place.wrong(format!("{name} is not set")))
        }
        _ => Err(table.wrong("give one of token, token_file and token_env")),
    }
}

/// A role by its name.
pub(super) fn role(place: &ConfigValue<'_>) -> Result<Role, ConfigError> {
    let text = place.text()?;
    let named = Role::ALL.into_iter().find(|role| role.name() == text);
    named.ok_or_else(|| place.wrong("expected read, check or admin"))
}
