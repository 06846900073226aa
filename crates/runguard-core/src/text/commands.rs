//! Programs that take a password on their command line, and where.
//!
//! The same flag is a port to one program and a password to another, so a flag says nothing without its program. A program is
//! known until its command ends: at a new line, or at what the shell puts between two commands.

/// Where the password is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PasswordAt {
    /// `-pVALUE`; apart it would be asked for.
    Glued,
    /// `-p VALUE`, `-p=VALUE` or `-pVALUE`.
    Behind,
    /// `-p VALUE`, where what touches the flag is another flag.
    Apart,
    /// `-u name:VALUE`: behind the first such sign.
    BehindSign(char),
    /// `-b 'name=VALUE; name=VALUE'`.
    Cookies,
}

struct Flag {
    programs: &'static [&'static str],
    flags: &'static [&'static str],
    place: PasswordAt,
}

const FLAGS: &[Flag] = &[
    Flag { programs: &["sshpass"], flags: &["-p"], place: PasswordAt::Behind },
    Flag {
        programs: &[
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mysqlimport",
            "mysqlcheck",
            "mysqlpump",
            "mysqlsh",
            "mariadb",
            "mariadb-dump",
            "mariadb-admin",
            "mycli",
            "7z",
            "7za",
            "7zr",
            "7zz",
            "rar",
            "unrar",
        ],
        flags: &["-p", "-hp"],
        place: PasswordAt::Glued,
    },
    Flag { programs: &["redis-cli", "valkey-cli", "keydb-cli"], flags: &["-a"], place: PasswordAt::Behind },
    Flag {
        programs: &["ldapsearch", "ldapmodify", "ldapadd", "ldapdelete", "ldapwhoami", "ldapcompare", "ldappasswd", "ldapmodrdn"],
        flags: &["-w"],
        place: PasswordAt::Behind,
    },
    Flag { programs: &["ldappasswd"], flags: &["-s", "-a"], place: PasswordAt::Behind },
    Flag { programs: &["curl"], flags: &["-u", "-U", "--user", "--proxy-user"], place: PasswordAt::BehindSign(':') },
    Flag { programs: &["curl"], flags: &["-b", "--cookie"], place: PasswordAt::Cookies },
    Flag { programs: &["http", "xh"], flags: &["-a", "--auth"], place: PasswordAt::BehindSign(':') },
    Flag { programs: &["etcdctl", "wget"], flags: &["--user"], place: PasswordAt::BehindSign(':') },
    Flag {
        programs: &["smbclient", "rpcclient", "smbget", "smbcacls", "net", "nmblookup"],
        flags: &["-U", "--user"],
        place: PasswordAt::BehindSign('%'),
    },
    Flag { programs: &["lftp"], flags: &["-u", "--user"], place: PasswordAt::BehindSign(',') },
    Flag {
        programs: &[
            "login",
            "twine",
            "mongo",
            "mongosh",
            "mongodump",
            "mongorestore",
            "mongoexport",
            "mongoimport",
            "mongostat",
            "cqlsh",
            "ncftp",
            "ncftpput",
            "ncftpget",
            "psexec",
            "rdesktop",
            "useradd",
            "usermod",
            "smbmap",
            "beeline",
            "evil-winrm",
        ],
        flags: &["-p"],
        place: PasswordAt::Behind,
    },
    Flag {
        programs: &["unzip", "zip", "zipcloak", "sqlcmd", "osql", "bcp", "tsql", "ipmitool", "mosquitto_pub", "mosquitto_sub", "isql"],
        flags: &["-P"],
        place: PasswordAt::Behind,
    },
    Flag { programs: &["plink", "pscp", "psftp", "putty"], flags: &["-pw"], place: PasswordAt::Apart },
    Flag {
        programs: &["snmpwalk", "snmpget", "snmpset", "snmpbulkwalk", "snmpbulkget"],
        flags: &["-A", "-X", "-c"],
        place: PasswordAt::Apart,
    },
    Flag { programs: &["openssl"], flags: &["-k", "-K"], place: PasswordAt::Apart },
];

/// Programs whose `-p` is a password only where they log in.
const LOGGING_IN: &[&str] = &["docker", "podman", "nerdctl", "helm", "skopeo", "buildah", "crane", "oras", "oc", "az", "cf", "aws", "npm"];

/// The program a word is, given the one that is known.
pub(super) fn program<'a>(word: &'a str, known: Option<&'a str>) -> Option<&'a str> {
    let may_be_program = (2..=16).contains(&word.len()) && !word.starts_with('-');
    if !may_be_program {
        return known;
    }
    if word == "login" {
        return known.filter(|known| LOGGING_IN.contains(known)).map(|_| word).or(known);
    }
    let is_known = LOGGING_IN.contains(&word) || FLAGS.iter().any(|flag| flag.programs.contains(&word));
    if is_known { Some(word) } else { known }
}

/// Where a program expects its password when `argument` begins with one of its flags, and how long the flag is.
pub(super) fn flag(program: &str, argument: &str) -> Option<(usize, PasswordAt)> {
    let flags = FLAGS.iter().filter(|flag| flag.programs.contains(&program));
    flags.flat_map(|flag| flag.flags.iter().map(|name| (*name, flag.place))).find_map(|(name, place)| {
        let rest = argument.strip_prefix(name)?;
        let is_apart = rest.starts_with([' ', '\t', '=']);
        let fits = match place {
            PasswordAt::Glued => !is_apart && !rest.is_empty(),
            PasswordAt::Behind => true,
            PasswordAt::BehindSign(_) => is_apart || !name.starts_with("--"),
            PasswordAt::Apart | PasswordAt::Cookies => is_apart,
        };
        fits.then_some((name.len(), place))
    })
}

/// Programs that read a password from what is piped into them.
pub(super) fn reads_password(command: &str) -> bool {
    const READERS: [&str; 8] =
        ["sudo -S", "sudo --stdin", "chpasswd", "passwd --stdin", "-stdin", "--with-token", "--passphrase-fd", "cryptsetup "];
    READERS.iter().any(|reader| command.contains(reader))
}
