use super::SettingsArgs;
use crate::failure::Failure;
use crate::output;
use clap::{Args, Subcommand};
use comfy_table::Cell;
use runguard_engine::Role;
use runguard_engine::clock::system_now;
use runguard_engine::keys::{self, DEFAULT_TENANT, KeyError, KeyRecord, NewKey};
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Key {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a key; it is shown once
    Create {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Whose sessions the key works on
        #[arg(long, default_value = DEFAULT_TENANT)]
        tenant: String,
        /// guard may ask, read may look, admin may change (and all else); more than one with commas
        #[arg(long = "role", value_delimiter = ',', default_value = "guard", value_parser = role)]
        roles: Vec<Role>,
        /// A name to know it by
        #[arg(long, default_value = "")]
        name: String,
        /// Answer blocks with 200, for tools that break on a refusal
        #[arg(long = "always-200")]
        always_200: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the keys (never their secrets)
    List {
        #[command(flatten)]
        settings: SettingsArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key by its id; a running service knows within a second
    Revoke {
        #[command(flatten)]
        settings: SettingsArgs,
        id: String,
    },
}

fn role(name: &str) -> Result<Role, String> {
    Role::from_name(name).ok_or_else(|| "a role is guard, read or admin".into())
}

fn folder(settings: &SettingsArgs) -> Result<PathBuf, Failure> {
    let loaded = settings.origin().load().map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(PathBuf::from(loaded.settings.store.data))
}

fn failure(error: KeyError) -> Failure {
    match error {
        KeyError::Unknown(_) => Failure::NotFound(error.to_string()),
        KeyError::Invalid(_) => Failure::Usage(error.to_string()),
        KeyError::File { .. } | KeyError::Damaged { .. } | KeyError::NoRandomness(_) => Failure::Failed(error.to_string()),
    }
}

fn shown(record: &KeyRecord) -> serde_json::Value {
    json!({
        "id": record.id, "name": record.name, "tenant": record.tenant, "roles": record.roles, "always_200": record.always_200,
        "created_at": output_time(record.created_at_ms), "revoked_at": record.revoked_at_ms.map(output_time),
    })
}

fn output_time(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| millis.to_string(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

impl Key {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Verb::Create { settings, tenant, roles, name, always_200, json } => {
                let new = NewKey { name, tenant, roles, always_200 };
                let (record, token) = keys::create(&folder(&settings)?, new, system_now().as_millis()).map_err(failure)?;
                if json {
                    let mut value = shown(&record);
                    value["key"] = token.into();
                    return output::json(&value);
                }
                // The notes go to the other stream, so that a script can take the key.
                anstream::eprintln!(
                    "Key {} for tenant '{}'. It is shown this once; only a hash of it is kept.\nSend it as `Authorization: Bearer …`.",
                    record.id,
                    record.tenant
                );
                output::line(&token)
            }
            Verb::List { settings, json } => {
                let records = keys::list(&folder(&settings)?).map_err(failure)?;
                if json {
                    return output::json(&records.iter().map(shown).collect());
                }
                if records.is_empty() {
                    return output::line(
                        "No keys. The service is open on loopback and refuses other addresses. Make one with `runguard key create`.",
                    );
                }
                let mut table = output::table(&["id", "name", "tenant", "roles", "always 200", "created", "revoked"]);
                for record in &records {
                    let roles: Vec<&str> = record.roles.iter().map(|role| role.name()).collect();
                    table.add_row([
                        Cell::new(&record.id),
                        Cell::new(output::clean(&record.name)),
                        Cell::new(output::clean(&record.tenant)),
                        Cell::new(roles.join(", ")),
                        Cell::new(if record.always_200 { "yes" } else { "" }),
                        Cell::new(output_time(record.created_at_ms)),
                        Cell::new(record.revoked_at_ms.map(output_time).unwrap_or_default()).fg(comfy_table::Color::Red),
                    ]);
                }
                output::line(&table.to_string())
            }
            Verb::Revoke { settings, id } => {
                let record = keys::revoke(&folder(&settings)?, &id, system_now().as_millis()).map_err(failure)?;
                output::line(&format!("Key {} of tenant '{}' is revoked.", record.id, output::clean(&record.tenant)))
            }
        }
    }
}
