//! `runguard key`: API keys, made, listed and revoked.

use super::SettingsArgs;
use crate::failure::Failure;
use crate::output;
use crate::table::Cell;
use clap::{Args, Subcommand};
use runguard_engine::clock::system_now;
use runguard_engine::keys::{self, DEFAULT_TENANT, KeyError, KeyRecord, NewKey};
use runguard_engine::{Reach, Role};
use serde_json::json;
use std::path::{Path, PathBuf};

const ROLES: &str = "Roles:
  guard    may ask the guards (POST /guard/…); the sessions are the tenant's
  read     may look: decisions, sessions, insights, circuits, settings and figures of its tenant
  admin    may do both and change things: force circuits, erase sessions, send alerts again
  metrics  may read /metrics of the whole service, and nothing else: for Prometheus

A key is of one tenant (--tenant) or of all (--all-tenants). A guard or read key is of the tenant 'default' unless it names another. An
admin key without --tenant is of ALL tenants, and so is a metrics key.";

#[derive(Debug, Args)]
pub(crate) struct Key {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a key; it is shown once
    #[command(after_help = ROLES)]
    Create {
        #[command(flatten)]
        settings: SettingsArgs,
        /// Whose sessions the key works on, and all it sees [default: 'default', for an admin all tenants]
        #[arg(long, conflicts_with = "all_tenants")]
        tenant: Option<String>,
        /// The key is of all tenants
        #[arg(long)]
        all_tenants: bool,
        /// What it may do; more than one with commas
        #[arg(long = "role", value_delimiter = ',', default_value = "guard", value_parser = output::offered(Role::ALL.map(|role| (role.name(), role.about())), role))]
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
        /// The key's id, as `runguard key list` shows it
        id: String,
    },
}

fn role(name: &str) -> Result<Role, String> {
    Role::from_name(name).ok_or_else(|| format!("a role is one of {}", Role::ALL.map(Role::name).join(", ")))
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
        "id": record.id, "name": record.name, "tenant": record.tenant, "all_tenants": record.reach() == Reach::AllTenants, "roles": record.roles, "always_200": record.always_200,
        "created_at": output::seconds_text(record.created_at_ms), "revoked_at": record.revoked_at_ms.map(output::seconds_text),
    })
}

/// What a key may reach, from what was said of it.
fn reach(tenant: Option<&String>, all_tenants: bool, roles: &[Role]) -> Reach {
    let of_service = roles.iter().any(|role| matches!(role, Role::Admin | Role::Metrics));
    if all_tenants || (tenant.is_none() && of_service) { Reach::AllTenants } else { Reach::OwnTenant }
}

fn whose(record: &KeyRecord) -> String {
    match record.reach() {
        Reach::AllTenants => "ALL tenants".to_owned(),
        Reach::OwnTenant => format!("tenant '{}'", output::clean(&record.tenant)),
    }
}

/// What its maker should know of a key that is of all tenants.
fn warning(record: &KeyRecord) -> Option<&'static str> {
    match record.reach() {
        Reach::AllTenants if record.roles.contains(&Role::Admin) => {
            Some("It sees and changes everything of every tenant. For the admin of one tenant name it: --tenant NAME.")
        }
        Reach::AllTenants | Reach::OwnTenant => None,
    }
}

/// The first key closes a service that was open. Whether it was is not known here: one that has had keys stays locked without them.
fn closing(folder: &Path) -> &'static str {
    if runguard_store::is_in_use(folder) {
        "This is the first key in the file: from now on (within a second) the service that runs on this folder refuses callers without a key, if it did not already."
    } else {
        "This is the first key: a service on this folder refuses callers without a key."
    }
}

fn no_keys(folder: &Path) -> &'static str {
    if runguard_store::is_in_use(folder) {
        "A service runs on this folder: it is open on loopback if it never had a key, and refuses every caller if it had one and the file is gone. After a restart it is open on loopback, and refuses to start on other addresses. Make one with `runguard key create`."
    } else {
        "A service started on this folder is open on loopback, and refuses to start on other addresses. Make one with `runguard key create`."
    }
}

impl Key {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Verb::Create { settings, tenant, all_tenants, roles, name, always_200, json } => {
                let folder = folder(&settings)?;
                let is_first = keys::list(&folder).map_err(failure)?.is_empty();
                let reach = reach(tenant.as_ref(), all_tenants, &roles);
                let new = NewKey { name, tenant: tenant.unwrap_or_else(|| DEFAULT_TENANT.into()), reach, roles, always_200 };
                let (record, token) = keys::create(&folder, new, system_now().as_millis()).map_err(failure)?;
                if is_first {
                    output::note(closing(&folder));
                }
                if json {
                    let mut value = shown(&record);
                    value["key"] = token.into();
                    return output::json(&value);
                }
                // The notes go to the other stream, so that a script can take the key.
                output::note(&format!(
                    "Key {} for {}. It is shown this once; only a hash of it is kept.\nSend it as `Authorization: Bearer …`.",
                    record.id,
                    whose(&record)
                ));
                if let Some(warning) = warning(&record) {
                    output::note(warning);
                }
                output::line(&token)
            }
            Verb::List { settings, json } => {
                let folder = folder(&settings)?;
                let records = keys::list(&folder).map_err(failure)?;
                if json {
                    return output::json(&records.iter().map(shown).collect());
                }
                let place = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
                if records.is_empty() {
                    return output::prose(&format!("No keys in {}. {}", place.display(), no_keys(&folder)));
                }
                output::line(&format!("Keys in {}:", place.display()))?;
                let mut table = output::table(&["id", "name", "tenant", "roles", "always 200", "created", "revoked"]);
                for record in &records {
                    let roles: Vec<&str> = record.roles.iter().map(|role| role.name()).collect();
                    table.add_row([
                        Cell::new(&record.id),
                        Cell::new(output::clean(&record.name)),
                        Cell::new(match record.reach() {
                            Reach::AllTenants => "ALL".to_owned(),
                            Reach::OwnTenant => output::clean(&record.tenant),
                        }),
                        Cell::new(roles.join(", ")),
                        Cell::new(if record.always_200 { "yes" } else { "" }),
                        Cell::new(output::time(&output::seconds_text(record.created_at_ms).into())),
                        Cell::new(record.revoked_at_ms.map(|at| output::time(&output::seconds_text(at).into())).unwrap_or_default())
                            .color(crate::table::Color::Red),
                    ]);
                }
                table.keep_whole(&[0]);
                output::show(&table)
            }
            Verb::Revoke { settings, id } => {
                let folder = folder(&settings)?;
                let record = keys::revoke(&folder, &id, system_now().as_millis()).map_err(failure)?;
                if keys::list(&folder).map_err(failure)?.iter().all(|key| key.revoked_at_ms.is_some()) {
                    output::note(
                        "It was the last one in force: the service does not open again, it refuses every caller until `runguard key create` makes another.",
                    );
                }
                output::line(&format!("Key {} of {} is revoked.", record.id, whose(&record)))
            }
        }
    }
}
