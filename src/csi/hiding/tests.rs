use super::*;

const JSON: &str = r#"{"type":"key","private":"LEAKED-1"}"#;

fn hide(text: &str, secrets: &[&str]) -> String {
    let secrets: Vec<String> = secrets.iter().map(|secret| (*secret).to_owned()).collect();
    hidden(text, &searched(&secrets)).into_owned()
}

#[test]
fn a_secret_is_left_out_however_it_is_written() {
    let nested = serde_json::to_string(&serde_json::json!({ "key": JSON })).unwrap();
    let twice = serde_json::to_string(&nested).unwrap();
    for (secret, text) in [
        (JSON, nested.as_str()),
        (JSON, &twice),
        (JSON, &format!("{JSON:?}")),
        ("pass\tword", r"pass\tword"),
        ("pass\tword", "pass%09word"),
        ("dom\\user9", r"dom\\user9"),
        ("dom\\user9", r"dom\x5cuser9"),
        ("dom\\user9", r"dom\134user9"),
        ("passwörd", r"pass\u0077\u00F6rd"),
        ("passwörd", r"passw\u{f6}rd"),
        ("passwörd", "passw%c3%B6rd"),
        ("key \u{1f511} of it", r"key \ud83d\udd11 of it"),
        ("a b c d", "?key=a+b+c+d"),
        ("a b c d", "?key=a%20b%20c%20d"),
        ("passwörd", r"passw\xc3\xb6rd"),
        ("passwörd", r"passw\303\266rd"),
        ("a&b<\"c\">", "a&amp;b&lt;&quot;c&#34;&#x3e;"),
        ("aaaa??bbbb>>cc", "YWFhYT8%2FYmJiYj4%2BY2M%3D"),
        ("line one of it", "bGluZSBv\n  bmUgb2YgaXQ="),
        ("pass\"word", "%22pass%5C%22word%22"),
        ("pass\"word", "pass&amp;quot;word"),
        ("pass\"word", "pass%2522word"),
        ("pass\"word", &STANDARD_NO_PAD.encode(r#"{"key":"pass\"word"}"#)),
        ("pass\"word", &STANDARD_NO_PAD.encode("key=pass%22word")),
        ("a&b c-d", &STANDARD_NO_PAD.encode(r#"{"key":"a\u0026b c-d"}"#)),
        ("a&b c-d", &STANDARD_NO_PAD.encode("key=a%26b+c-d")),
        ("passwörd \u{1f511}", &STANDARD_NO_PAD.encode(r#"{"key":"passw\u00f6rd \ud83d\udd11"}"#)),
        ("s3cr3t", "[115 51 99 114 51 116]"),
        ("s3cr3t", "[115, 51, 99, 114, 51, 116]"),
        ("a key of it", &STANDARD_NO_PAD.encode(STANDARD_NO_PAD.encode("user:a key of it"))),
        ("a key of it", &STANDARD_NO_PAD.encode(STANDARD_NO_PAD.encode("a key of it"))),
        ("s3cr3t", "[]byte{0x73, 0x33, 0x63, 0x72, 0x33, 0x74}"),
        ("s3cr3t", "[73, 33, 63, 72, 33, 74]"),
        ("s3cr3t", "Uint8Array(6) [115,51,99,114,51,116]"),
        ("tab\tkey", "[]byte{0x74, 0x61, 0x62, 0x9, 0x6b, 0x65, 0x79}"),
        ("s3cr3t", "733363723374"),
        ("s3cr3t", "73:33:63:72:33:74"),
        ("s3cr3t", "73 33 63 72 33 74"),
        ("o'Brien/$x y", r#"'o'"'"'Brien/$x y'"#),
        ("o'Brien/$x y", r"'o'\''Brien/$x y'"),
        ("o'Brien/$x y", "'o''Brien/$x y'"),
        ("dom\\new\"9", r#"dom\new\"9"#),
        ("o'Brien/$x=y", "o=27Brien/$x=3Dy"),
        // Cut off, and written in another way.
        ("a/b/c/d/e/f/g/h", "a%2Fb%2Fc%2Fd%2Fe%2F..."),
        ("Key9", "4B657939"),
    ] {
        let said = hide(&format!("401 to <{text}> of you"), &[secret]);
        assert_eq!(said, NOT_SHOWN, "{secret:?} {text:?}");
    }
    // Wherever it stands in what is encoded, such as behind the name of a user.
    for before in ["", "u:", "user:", "a"] {
        for after in ["", "x", "yz"] {
            let whole = format!("{before}n0t?for~you>{after}");
            for code in [STANDARD_NO_PAD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
                let said = hide(&format!("Authorization: Basic {code}== refused"), &["n0t?for~you>"]);
                assert_eq!(said, NOT_SHOWN, "{whole} {code}");
            }
        }
    }
}

/// One that is a part of another one does not hide that.
#[test]
fn a_short_secret_within_a_long_one_does_not_keep_that_from_being_found() {
    let key = r#"{"user":"user1","private":"LEAKED-1"}"#;
    let escaped = serde_json::to_string(key).unwrap();
    for (secrets, text) in [
        (["user1", key], escaped.as_str()),
        (["admin", "admin\"2024"], r#"pass=admin\"2024"#),
        (["n0t?for~you>", "cn55"], "Basic bjB0P2Zvcn55b3U+"),
        (["user1", key], &format!("{key} is {escaped}")),
    ] {
        assert_eq!(hide(text, &secrets), NOT_SHOWN, "{secrets:?}");
    }
    assert_eq!(hide(key, &["user1", key]), "<redacted>");
}

/// What is left of one that was cut off is left out, too, if it is half of it or much.
#[test]
fn a_piece_of_a_secret_is_left_out() {
    let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\n-----END KEY-----";
    let basic = STANDARD_NO_PAD.encode("user:s3cr3t-of-18-bytes");
    let account = serde_json::json!({ "type": "account", "private_key": key }).to_string();
    let long = (0..900).map(|n| format!("{:x}Q", n * 7919)).collect::<String>();
    for (secret, said, shown) in [
        ("o'Brien/LEAKED", "bad o'Brien/LEA... given", "bad <redacted>... given"),
        ("o'Brien/LEAKED", "...n/LEAKED given", "...<redacted> given"),
        ("o'Brien/LEAKED", "n/leake, o'brie", "n/leake, o'brie"),
        (key, "MIIEvQIBADANBgkqhk...", "<redacted>..."),
        (key, "MIIEvQIBADANBgk...", "MIIEvQIBADANBgk..."),
        ("Passwörd-passwörd", "is sswörd-passw", "is <redacted>"),
        ("s3cr3t-of-18-bytes", &basic[..28], &format!("{}<redacted>", &basic[..7])),
        (&account, "bad line MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj", "bad line <redacted>"),
        (&account, "MIIEvQIBADANBgkqhkiG...", "<redacted>..."),
        (&long, &format!("{}...", &long[..200]), "<redacted>..."),
        ("[aB3dE5gH7jK9mN1pQ3:", "[aB3dE5gH7jK9m...", "<redacted>..."),
        ("thirtytwosmalllettersofapassword", "thirtytwosmallletter...", "<redacted>..."),
        ("abcdef.0123456789abcdef", "token abcdef.0123456789abc...", "token <redacted>..."),
        ("my.s3cret.passw0rd.2026", "my.s3cret.passw0rd.2...", "<redacted>..."),
        ("Kk7Qz9vB2mX4=correct", "Kk7Qz9vB2mX...", "<redacted>..."),
        ("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=", "QUJDREVGR0hJSktMTU5P...", "<redacted>..."),
    ] {
        assert_eq!(hide(said, &[secret]), shown, "{said}");
    }
    // One that is a part of it does not leave the rest.
    assert_eq!(hide("at Kk7-user1-SECRETP...", &["user1", "Kk7-user1-SECRETPART99"]), "at <redacted>...");
    // A word is a word, and what has a form is no secret by that.
    assert_eq!(hide("the password of it", &["password"]), "the <redacted> of it");
    let config = "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    server: https://10.0.0.1:6443\n";
    for (secret, said) in [
        ("administrator", "the administration of it"),
        ("Administrator", "the administration of it"),
        ("csi-rbd-node1", "csi-rbd-provisioner"),
        ("kubernetes-csi-node-driver-registrar", "csi-node-driver-x is away"),
        (r#"{"id":"x","user":"administrator"}"#, "the administration of it"),
        (r#"{"x":"1","portal":"192.168.10.20:3260"}"#, "192.168.10.21:3260 is away"),
        ("DB_HOST=db.example.com", "x.example.com not found"),
        ("/etc/ceph/ceph.client.admin.keyring", "open /etc/ceph/ceph.conf: no such file"),
        ("Subject Public Key Info:", "invalid public key in certificate"),
        ("vc01.corp.example.com", "vc02.corp.example.com"),
        ("portal: 192.168.10.20:3260", "192.168.11.7 is away"),
        ("me@project.iam.example.com", "you@project.iam.example.com"),
        (config, "no such cluster in this context; invalid kind of configuration"),
        (r#"{"uri": "https://accounts.example.com/o/auth"}"#, "no answer of https://accounts.example.com/v2"),
        (r#"{"pool":"data","user":"root","fs":"ext4"}"#, "no data: mkfs.ext4 failed as root"),
        (key, "no KEY----- in it: -----BEGIN CERTIFICATE-----"),
    ] {
        assert_eq!(hide(said, &[secret]), said);
    }
}

#[test]
fn what_a_secret_of_several_names_is_one_too() {
    let account = r#"{"type": "account", "key": {"id": 31415926, "port": 8443, "token": ["abc-7", "x"]}}"#;
    let ring = "[client.admin]\n\tkey = AQBleaked123==\n";
    let yaml = "user: me\npassword: 'hunter2' # of 2026\nplace: somewhere";
    for (secret, said, shown) in [
        (account, "token abc-7 of 31415926 at 8443", "token <redacted> of <redacted> at 8443"),
        (ring, "AQBleaked123== is not known", "<redacted> is not known"),
        (yaml, "hunter2: no, me of somewhere", "<redacted>: no, me of <redacted>"),
        ("postgres://user:passw0rd1@host.example/db", "user, passw0rd1", "user, <redacted>"),
        ("Server=db;Password=hunter2;Port=1", "db, hunter2", "db, <redacted>"),
        ("host=h user=me password=hunter2 port=1", "me, hunter2", "me, <redacted>"),
        ("postgres://user:p%40ss%2Fw0rd@h/db", "p@ss/w0rd", "<redacted>"),
        (
            r#"{"endpoint": "https://api.example", "dsn": "postgres://user:passw0rd1@h/db"}"#,
            "user of it, passw0rd1",
            "user of it, <redacted>",
        ),
        (r#"{"pw": "hunter2", "mode": "fast"}"#, "fast hunter2", "fast <redacted>"),
        ("postgres://user:it's-s3cret@h/db", "no it's-s3cret", "no <redacted>"),
        ("'http://user:pass99@h/x'", "no pass99", "no <redacted>"),
        ("https://h.example/c?sig=abc123DEF456ghi789&sv=1", "sig abc123DEF456ghi789", "sig <redacted>"),
        ("jdbc:mysql://h/db?password=hunter2&user=me", "me, hunter2", "me, <redacted>"),
        ("Server=db;Password=//x9-Kq7pA", "db, //x9-Kq7pA", "db, <redacted>"),
        ("node.session.auth.password_in = hunter2", "at hunter2", "at <redacted>"),
        (r#"{"encryptionPassphrase": "hunter2"}"#, "at hunter2", "at <redacted>"),
        (r#"{"api_key_v2": "Zx81kq", "auth": "chap"}"#, "chap Zx81kq", "chap <redacted>"),
        (r#"{"creds": {"x": "y"}, "password1": "user"}"#, "the user", "the <redacted>"),
        (
            "https://ghp_Zx81kqAbC9@git.example/x",
            "no ghp_Zx81kqAbC9 at git.example",
            "no <redacted> at git.example",
        ),
        ("https://ghp_Zx81kqAbC9:x-oauth@git.example/x", "no ghp_Zx81kqAbC9", "no <redacted>"),
        ("https://administrator@git.example/x", "no administrator", "no administrator"),
        (
            r#"{"auths": {"reg.example": {"auth": "dXNlcjpodW50ZXItMjI="}}}"#,
            "user, hunter-22",
            "user, <redacted>",
        ),
        ("3q2++8r+uq3K/rq+3q2+7w==", "key deadbefbcafebaadcafebabedeadbeef", "key <redacted>"),
        ("db.example:5432:shop:me:Kq7pAz9x", "me, Kq7pAz9x", "me, <redacted>"),
        ("PGPASSWORD=hunter2", "at hunter2", "at <redacted>"),
        (r#"{"apikey": "Zx81kq"}"#, "at Zx81kq", "at <redacted>"),
        (
            r#"[{"name": "password", "value": "hunter2"}, {"name": "mode", "value": "fast"}]"#,
            "fast hunter2",
            "fast <redacted>",
        ),
        (r#"{"Key": "dbPassword", "Value": "hunter2"}"#, "at hunter2", "at <redacted>"),
        ("password: Kq;7pAz9xQ2w", "at Kq;7pAz9xQ2w", "at <redacted>"),
        (r#"{"password": "[\"hunter2\"]"}"#, "at hunter2", "at <redacted>"),
        ("{\"a\": \"x\"}\n{\"pw\": \"hunter2\"}", "at hunter2", "at <redacted>"),
        ("auth_client_required = none\nauth: none\nkey_type: user", "none of the users", "none of the users"),
    ] {
        assert_eq!(hide(said, &[secret]), shown, "{said}");
    }
}

/// What servers say, in the words of a driver, in a line of its log.
#[test]
fn a_message_that_is_written_down_several_times_stays_if_it_has_no_secret() {
    let said = r#"RawError: {\"error\":{\"message\":\"no \\\"a+b\\\" with id=ab12\",\"at\":\"https://x/%2Fv1?a=b&amp;c=d\",\"by\":\"it\u0027s ''x''\"}}"#;
    assert_eq!(hide(said, &["hunter22-XY"]), said);
}

/// Not so many that it takes long to look for them.
#[test]
fn too_much_to_be_searched_is_not_shown() {
    let lines: Vec<String> = (0..400).map(|n| format!("line {n} of a bundle of certificates")).collect();
    let bundle = lines.join("\n");
    assert_eq!(hide("no such pool", &[&bundle]), "no such pool");
    let escaped = r"\\\\%25252541&amp;amp;amp;".repeat(400);
    assert_eq!(hide(&escaped, &["hunter22"]), escaped);
    assert_eq!(hide(&escaped, &[&bundle]), NOT_SHOWN);
}

#[test]
fn what_has_no_secret_stays_as_it_is() {
    for text in [
        "",
        "no such pool: 100%",
        r"C:\temp\new, \u12 and \x, \u{110000}, \u{}, \u{, \",
        "dXNlcjpwYXNzd29yZA== is not yours, 68756e",
        r#"{"path":"/a\/b","text":"ö \ud83d"}"#,
        "a & b; &amp; &#x110000; &#; &nothing;",
    ] {
        assert_eq!(hide(text, &["hunter22", JSON]), text);
    }
    assert_eq!(hide("pass=hunter22,ab", &["hunter22", "ab"]), "pass=<redacted>,ab");
    assert_eq!(hide("HUNTER22 of ö Hunter22", &["hunter22"]), "<redacted> of ö <redacted>");
    assert_eq!(hide(&"\\u{".repeat(100_000), &["hunter22"]), NOT_SHOWN);
    assert_eq!(hide(&"x".repeat(100_000), &[]).len(), 100_000);
    let secrets = searched(&["hunter22".to_owned(), "ab".to_owned(), "line one\nline two\n".to_owned()]);
    assert_eq!(secrets, ["line one\nline two", "hunter22", "line one", "line two"]);
}
