//! API keys: who may do what, for which tenant.
//!
//! A key is `rg_<id>_<secret>`. The id is public and names the key; of the secret only a SHA-256 is kept (it has 160
//! random bits: nothing to guess, so nothing slow is needed). The file is small JSON, replaced as a whole, so the
//! command line can make and revoke keys while the service runs; the service looks at it again every second.

use crate::settings::short_hash;
use runguard_store::files::{create_private_folder, make_private, private_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subtle::ConstantTimeEq;

pub const KEY_FILE: &str = "keys.json";
/// The tenant of callers without a key, and of keys made without naming one.
pub const DEFAULT_TENANT: &str = "default";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// May ask the guards.
    Guard,
    /// May look at the log.
    Read,
    /// May look, ask and change.
    Admin,
    /// May read the service's own figures, and nothing else.
    Metrics,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Guard, Self::Read, Self::Admin, Self::Metrics];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Guard => "guard",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// What it may do.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Guard => "May ask the guards",
            Self::Read => "May look at the log",
            Self::Admin => "May look, ask and change",
            Self::Metrics => "May read the service's own figures, and nothing else",
        }
    }
}

/// Whose things a key works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those of its own tenant.
    OwnTenant,
    AllTenants,
}

/// A key as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyRecord {
    pub id: String,
    #[serde(default)]
    pub name: String,
    /// Whose sessions it asks about.
    pub tenant: String,
    /// Absent in records of before there was a choice; see [`Self::reach`].
    #[serde(default)]
    pub all_tenants: Option<bool>,
    pub roles: Vec<Role>,
    /// Blocks are answered 200.
    #[serde(default)]
    pub always_200: bool,
    pub secret_sha256: String,
    pub created_at_ms: i64,
    #[serde(default)]
    pub revoked_at_ms: Option<i64>,
}

impl KeyRecord {
    /// A record that does not say is of its tenant, but for an admin of the default one: it was made for the whole service.
    pub fn reach(&self) -> Reach {
        let of_all = self.all_tenants.unwrap_or_else(|| self.roles.contains(&Role::Admin) && self.tenant == DEFAULT_TENANT);
        if of_all { Reach::AllTenants } else { Reach::OwnTenant }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct KeyFile {
    keys: Vec<KeyRecord>,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read or write {path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a key file: {detail}. Restore it from a backup, or move it away and make new keys")]
    Damaged { path: PathBuf, detail: String },
    #[error("no key with the id '{0}'; `runguard key list` shows them")]
    Unknown(String),
    #[error("no randomness to be had from the system: {0}")]
    NoRandomness(String),
    #[error("{0}")]
    Invalid(String),
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose sessions it asks about.
    pub tenant: Arc<str>,
    pub reach: Reach,
    pub roles: Vec<Role>,
    pub always_200: bool,
    /// Public id of the key; empty when the service is open.
    pub key_id: String,
}

impl Caller {
    /// Everyone, while no keys were made and the service listens on loopback only.
    pub fn open() -> Arc<Self> {
        thread_local! {
            // One a thread: they would pass the counts of one, and of its tenant's name, back and forth with every request.
            static OPEN: Arc<Caller> = Arc::new(Caller {
                tenant: DEFAULT_TENANT.into(),
                reach: Reach::AllTenants,
                roles: vec![Role::Admin],
                always_200: false,
                key_id: String::new(),
            });
        }
        OPEN.with(Arc::clone)
    }

    /// Someone without a key, let in because there are none.
    pub fn is_anyone(&self) -> bool {
        self.key_id.is_empty()
    }

    /// Whether it may do what the role is for, to the tenants that it [sees](Self::sees).
    pub fn may(&self, role: Role) -> bool {
        match role {
            Role::Guard | Role::Read | Role::Admin => self.roles.iter().any(|own| *own == role || *own == Role::Admin),
            // The figures are of all tenants together.
            Role::Metrics => self.roles.contains(&Role::Metrics) || self.is_admin_of_all(),
        }
    }

    pub fn sees(&self, tenant: &str) -> bool {
        self.sees_all() || *self.tenant == *tenant
    }

    pub fn sees_all(&self) -> bool {
        self.reach == Reach::AllTenants
    }

    /// The operator of the service, and not of one tenant.
    pub fn is_admin_of_all(&self) -> bool {
        self.sees_all() && self.roles.contains(&Role::Admin)
    }
}

/// The keys in force.
#[derive(Debug, Clone, Default)]
pub struct KeyRing {
    keys: HashMap<String, (KeyRecord, Arc<Caller>)>,
    lock: Lock,
}

/// Whether this process has had a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Lock {
    #[default]
    Open,
    Locked,
}

impl KeyRing {
    /// Of the keys and what each may do.
    pub fn fingerprint(&self) -> u32 {
        let mut lines: Vec<String> = self.keys.values().filter_map(|(record, _)| serde_json::to_string(record).ok()).collect();
        lines.sort_unstable();
        short_hash(&lines)
    }

    pub fn load(folder: &Path) -> Result<Self, KeyError> {
        let file = read(folder)?;
        let entry = |key: KeyRecord| {
            let caller = Caller {
                tenant: key.tenant.as_str().into(),
                reach: key.reach(),
                roles: key.roles.clone(),
                always_200: key.always_200,
                key_id: key.id.clone(),
            };
            (key.id.clone(), (key, Arc::new(caller)))
        };
        let keys: HashMap<_, _> = file.keys.into_iter().map(entry).collect();
        let lock = if keys.is_empty() { Lock::Open } else { Lock::Locked };
        Ok(Self { keys, lock })
    }

    /// The same after other keys were in force: a file that is removed or emptied takes the keys away and opens nothing.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        if before.lock == Lock::Locked { Self { lock: Lock::Locked, ..self } } else { self }
    }

    /// No key was ever made. (Revoking the last one does not open the service, nor does taking the file away while it runs.)
    pub fn is_open(&self) -> bool {
        self.lock == Lock::Open
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The caller behind a token. Takes the same time whichever half of it is wrong.
    pub fn caller(&self, token: &str) -> Option<Arc<Caller>> {
        let (id, secret) = token.strip_prefix("rg_")?.split_once('_')?;
        let entry = self.keys.get(id);
        let expected = entry.map_or("", |(record, _)| record.secret_sha256.as_str());
        let given = sha256_hex(secret);
        let matches: bool = given.as_bytes().ct_eq(expected.as_bytes()).into();
        let (_, caller) = entry.filter(|(record, _)| matches && record.revoked_at_ms.is_none())?;
        Some(caller.clone())
    }

    /// Whether a caller that came in with a key would come in with the same rights again.
    pub fn still_knows(&self, caller: &Caller) -> bool {
        let entry = self.keys.get(&caller.key_id);
        entry.is_some_and(|(record, known)| record.revoked_at_ms.is_none() && **known == *caller)
    }
}

/// What a new key should be.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub name: String,
    pub tenant: String,
    pub reach: Reach,
    pub roles: Vec<Role>,
    pub always_200: bool,
}

impl NewKey {
    fn check(&self) -> Result<(), KeyError> {
        let wrong = |problem: &str| Err(KeyError::Invalid(problem.into()));
        if self.roles.is_empty() {
            return wrong("a key needs a role: guard, read, admin or metrics");
        }
        if self.tenant.trim().is_empty() || self.tenant.chars().count() > 256 || self.tenant.contains('\0') {
            return wrong("a tenant is a name of 1 to 256 characters");
        }
        match self.reach {
            Reach::OwnTenant if self.roles.contains(&Role::Metrics) => wrong(
                "the role metrics reads the figures of all tenants, so such a key cannot be of one; a tenant's own figures are read with the role read",
            ),
            Reach::AllTenants if self.roles.iter().all(|role| *role == Role::Guard) => {
                wrong("the role guard asks about the sessions of one tenant: name it with --tenant")
            }
            Reach::OwnTenant | Reach::AllTenants => Ok(()),
        }
    }
}

/// Makes a key and gives its record and the token, which is shown once and kept nowhere.
pub fn create(folder: &Path, new: NewKey, now_ms: i64) -> Result<(KeyRecord, String), KeyError> {
    new.check()?;
    let _lock = lock(folder)?;
    let mut file = read(folder)?;
    let (id, secret) = (random_text(8)?, random_text(20)?);
    let record = KeyRecord {
        id: id.clone(),
        name: new.name,
        tenant: new.tenant,
        all_tenants: Some(new.reach == Reach::AllTenants),
        roles: new.roles,
        always_200: new.always_200,
        secret_sha256: sha256_hex(&secret),
        created_at_ms: now_ms,
        revoked_at_ms: None,
    };
    file.keys.push(record.clone());
    write(folder, &file)?;
    Ok((record, format!("rg_{id}_{secret}")))
}

pub fn list(folder: &Path) -> Result<Vec<KeyRecord>, KeyError> {
    Ok(read(folder)?.keys)
}

pub fn revoke(folder: &Path, id: &str, now_ms: i64) -> Result<KeyRecord, KeyError> {
    let _lock = lock(folder)?;
    let mut file = read(folder)?;
    // A whole key may be pasted: its id is in it.
    let id = id.strip_prefix("rg_").and_then(|rest| rest.split('_').next()).unwrap_or(id);
    let record = file.keys.iter_mut().find(|key| key.id == id).ok_or_else(|| KeyError::Unknown(id.to_owned()))?;
    record.revoked_at_ms.get_or_insert(now_ms);
    let record = record.clone();
    write(folder, &file)?;
    Ok(record)
}

fn read(folder: &Path) -> Result<KeyFile, KeyError> {
    let path = folder.join(KEY_FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| KeyError::Damaged { path, detail: error.to_string() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(KeyFile::default()),
        Err(source) => Err(KeyError::File { path, source }),
    }
}

/// Two commands at once must not lose one of the keys.
fn lock(folder: &Path) -> Result<fs::File, KeyError> {
    let path = folder.join("keys.lock");
    let failed = |source| KeyError::File { path: path.clone(), source };
    create_private_folder(folder).map_err(failed)?;
    let file = private_file().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    make_private(&path).map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}

/// Whole or not at all: written beside, then moved into place.
fn write(folder: &Path, keys: &KeyFile) -> Result<(), KeyError> {
    let path = folder.join(KEY_FILE);
    let beside = folder.join(format!("{KEY_FILE}.new"));
    let failed = |source| KeyError::File { path: path.clone(), source };
    let mut json = serde_json::to_vec_pretty(keys).map_err(|error| KeyError::Invalid(error.to_string()))?;
    json.push(b'\n');
    let mut file = private_file().create(true).truncate(true).write(true).open(&beside).map_err(failed)?;
    file.write_all(&json).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&beside, &path).map_err(failed)
}

/// Lowercase letters and digits that are hard to mistake, five bits each.
/// Letters and digits that nobody guesses, of so many random bytes.
pub fn random_text(bytes: usize) -> Result<String, KeyError> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut noise = vec![0_u8; bytes * 8 / 5];
    getrandom::fill(&mut noise).map_err(|error| KeyError::NoRandomness(error.to_string()))?;
    Ok(noise.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect())
}

fn sha256_hex(secret: &str) -> String {
    runguard_core::fingerprint::hex_of(&Sha256::digest(secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_key(tenant: &str, role: Role) -> NewKey {
        NewKey { name: String::new(), tenant: tenant.into(), reach: Reach::OwnTenant, roles: vec![role], always_200: false }
    }

    fn caller_of(folder: &Path, new: NewKey) -> Arc<Caller> {
        let (_, token) = create(folder, new, 0).unwrap();
        KeyRing::load(folder).unwrap().caller(&token).unwrap()
    }

    #[test]
    fn an_admin_is_of_one_tenant_or_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let own = caller_of(folder.path(), new_key("acme", Role::Admin));
        assert!(own.may(Role::Admin) && own.may(Role::Read) && !own.may(Role::Metrics));
        assert!(own.sees("acme") && !own.sees("globex") && !own.is_admin_of_all());
        let all = caller_of(folder.path(), NewKey { reach: Reach::AllTenants, ..new_key(DEFAULT_TENANT, Role::Admin) });
        assert!(all.sees("acme") && all.sees("globex") && all.is_admin_of_all() && all.may(Role::Metrics));
        let figures = caller_of(folder.path(), NewKey { reach: Reach::AllTenants, ..new_key(DEFAULT_TENANT, Role::Metrics) });
        assert!(figures.may(Role::Metrics) && !figures.may(Role::Guard) && !figures.may(Role::Read) && !figures.may(Role::Admin));
        for nonsense in [new_key("acme", Role::Metrics), NewKey { reach: Reach::AllTenants, ..new_key("acme", Role::Guard) }] {
            assert!(matches!(create(folder.path(), nonsense, 0), Err(KeyError::Invalid(_))));
        }
    }

    #[test]
    fn a_record_of_before_there_was_a_choice_is_of_its_tenant_unless_it_was_made_for_the_service() {
        let reach = |tenant: &str, role: &str| {
            let record = serde_json::json!({"id": "a", "tenant": tenant, "roles": [role], "secret_sha256": "", "created_at_ms": 0});
            serde_json::from_value::<KeyRecord>(record).unwrap().reach()
        };
        assert_eq!(reach(DEFAULT_TENANT, "admin"), Reach::AllTenants);
        assert_eq!(reach("acme", "admin"), Reach::OwnTenant);
        assert_eq!(reach(DEFAULT_TENANT, "read"), Reach::OwnTenant);
    }

    #[test]
    fn a_caller_is_known_until_its_key_is_revoked_or_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (record, token) = create(folder.path(), new_key("acme", Role::Read), 0).unwrap();
        let ring = KeyRing::load(folder.path()).unwrap();
        let caller = ring.caller(&token).unwrap();
        assert!(ring.still_knows(&caller));
        assert!(!ring.still_knows(&Caller { roles: vec![Role::Admin], ..(*caller).clone() }));
        assert!(!ring.still_knows(&Caller::open()));
        revoke(folder.path(), &record.id, 1).unwrap();
        assert!(!KeyRing::load(folder.path()).unwrap().still_knows(&caller));
    }

    #[test]
    fn a_key_opens_its_tenant_until_it_is_revoked_and_its_secret_is_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        assert!(KeyRing::load(folder.path()).unwrap().is_open());
        let (record, token) = create(folder.path(), new_key("acme", Role::Guard), 0).unwrap();
        let (_, other) = create(folder.path(), new_key("other", Role::Read), 0).unwrap();
        let ring = KeyRing::load(folder.path()).unwrap();
        let caller = ring.caller(&token).unwrap();
        assert_eq!(&*caller.tenant, "acme");
        assert!(caller.may(Role::Guard) && !caller.may(Role::Read) && !caller.may(Role::Admin));
        for wrong in ["", "rg_", "rg_x_y", &token[..token.len() - 1], &format!("{token}x"), &token.replace("rg_", "RG_")] {
            assert!(ring.caller(wrong).is_none(), "{wrong}");
        }
        let secret = token.rsplit('_').next().unwrap();
        assert!(!fs::read_to_string(folder.path().join(KEY_FILE)).unwrap().contains(secret));
        revoke(folder.path(), &record.id, 1).unwrap();
        let ring = KeyRing::load(folder.path()).unwrap();
        assert!(ring.caller(&token).is_none() && ring.caller(&other).is_some());
        assert!(!ring.is_open());
        assert!(matches!(revoke(folder.path(), "nope", 1), Err(KeyError::Unknown(_))));
    }

    #[test]
    fn keys_that_vanish_open_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let open = KeyRing::load(folder.path()).unwrap();
        assert!(open.clone().after(&open).is_open());
        let (_, token) = create(folder.path(), new_key("acme", Role::Guard), 0).unwrap();
        let locked = KeyRing::load(folder.path()).unwrap().after(&open);
        for emptied in [None, Some("{\"keys\": []}")] {
            fs::remove_file(folder.path().join(KEY_FILE)).unwrap_or_default();
            if let Some(emptied) = emptied {
                fs::write(folder.path().join(KEY_FILE), emptied).unwrap();
            }
            let ring = KeyRing::load(folder.path()).unwrap().after(&locked);
            assert!(!ring.is_open() && ring.caller(&token).is_none());
            assert!(!KeyRing::load(folder.path()).unwrap().after(&ring).is_open(), "and it stays so");
        }
    }
}
