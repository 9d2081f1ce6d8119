//! What a script can say, and what is said of one that cannot be.
use prost::Message as _;
use serde_json::json;

use super::*;
use crate::csi::proto;

fn one(rule: Value) -> Rule {
    let script = Script::read(&json!({ "rules": [rule] })).unwrap();
    script.rules.into_iter().next().unwrap()
}

#[test]
fn what_a_rule_can_say() {
    let plan = |rule: Value| one(rule).plan;
    let code = |code, message: &str| End::Instead(code, message.to_owned(), Lies::None);
    for (rule, end, words) in [
        (json!({ "method": "*" }), End::Honest, "nothing"),
        (
            json!({ "method": "*", "code": "ABORTED" }),
            code(Code::Aborted, "injected by a script"),
            "code ABORTED",
        ),
        (
            json!({ "method": "*", "code": "INTERNAL", "message": "disk on fire" }),
            code(Code::Internal, "disk on fire"),
            "code INTERNAL",
        ),
        (
            json!({ "method": "*", "loseReply": "Unavailable", "message": "m" }),
            End::Lost(Loss::Unavailable, "m".to_owned()),
            "loseReply Unavailable",
        ),
        (
            json!({ "method": "*", "answerCode": "UNKNOWN" }),
            End::Answered(Code::Unknown, "injected by a script".to_owned()),
            "answerCode UNKNOWN",
        ),
        (json!({ "method": "*", "hang": true }), End::Hang, "hang"),
        (json!({ "method": "*", "crash": "Before" }), End::Crash(Moment::Before), "crash Before"),
        (json!({ "method": "*", "crash": "After" }), End::Crash(Moment::After), "crash After"),
        (json!({ "method": "*", "lie": "Empty" }), End::Lie(Lies::Empty), "lie"),
    ] {
        let plan = plan(rule.clone());
        assert_eq!((&plan.end, plan.words().as_str()), (&end, words), "{rule}");
    }
    for (word, loss) in [("Cut", Loss::Cut), ("Silence", Loss::Silence)] {
        let lost = End::Lost(loss, "the answer was lost, by a script".to_owned());
        assert_eq!(plan(json!({ "method": "*", "loseReply": word })).end, lost);
    }
    let much = json!({ "method": "*", "delay": "1m30s", "delayAnswer": "250ms", "repeat": "AtOnce" });
    let much = plan(much);
    assert_eq!((much.delay, much.delay_answer), (Duration::from_secs(90), Duration::from_millis(250)));
    assert_eq!(much.words(), "delay 90s, repeat AtOnce, delayAnswer 250ms");
    let when = one(json!({ "method": "*", "after": 1, "every": 2, "times": 3, "probability": 0.5 })).when;
    assert_eq!(when, When { after: 1, every: 2, times: Some(3), probability: Some(0.5) });
    assert_eq!(Script::read(&json!({ "seed": 9, "rules": [] })).unwrap().seed, Some(9));
    assert!(Script::read(&Value::Null).unwrap().is_empty(), "an empty file is an empty script");
}

#[test]
fn an_ok_that_nobody_earned() {
    let rule = one(json!({ "method": "Probe", "code": "OK", "lie": { "ready": false } }));
    let End::Instead(Code::Ok, _, lies) = rule.plan.end else { panic!("{:?}", rule.plan.end) };
    let told = lies.tell("csi.v1.Identity/Probe", &[]).unwrap();
    assert_eq!(proto::ProbeResponse::decode(told.as_slice()).unwrap().ready, Some(false));
    assert_eq!(lies.tell("csi.v1.Node/NodeStageVolume", &[]), None);
}

/// Each rule has this one fault.
fn assert_refused(cases: &[(Value, &str)]) {
    for (rule, fault) in cases {
        let ScriptError(found) = Script::read(&json!({ "rules": [rule] })).unwrap_err();
        assert!(found.len() == 1 && found[0].starts_with(fault), "{rule}: {found:?}");
    }
}

#[test]
fn each_fault_names_its_rule_and_its_field() {
    assert_refused(&[
        (json!(1), "rules[0]: write an object with the field method"),
        (json!({}), "rules[0].method: is missing; write a call such as CreateVolume, or \"*\" for all"),
        (json!({ "method": 1 }), "rules[0].method: write a text"),
        (json!({ "method": "CreateVolum" }), "rules[0].method: CreateVolum is no call of CSI"),
        (
            json!({ "method": "*", "metod": 1 }),
            "rules[0].metod: there is no such field; a rule has name, method, id",
        ),
        (
            json!({ "method": "*", "times": 0 }),
            "rules[0].times: 0 is no such number; write a whole one, 1 or more",
        ),
        (json!({ "method": "*", "every": 0 }), "rules[0].every: 0 is no such number"),
        (json!({ "method": "*", "after": -1 }), "rules[0].after: -1 is no such number"),
        (json!({ "method": "*", "probability": 1.5 }), "rules[0].probability: 1.5 is no share"),
        (json!({ "method": "*", "probability": 0 }), "rules[0].probability: 0 is no share"),
        (json!({ "method": "*", "id": "" }), "rules[0].id: write a text"),
        (
            json!({ "method": "*", "delay": 5 }),
            "rules[0].delay: 5 is no time; write such as 500ms, 2s or 1m30s",
        ),
        (json!({ "method": "*", "delay": "5" }), "rules[0].delay: \"5\" is no time"),
        (json!({ "method": "*", "delayAnswer": "0s" }), "rules[0].delayAnswer: \"0s\" is no time"),
    ]);
}

#[test]
fn so_it_is_with_what_becomes_of_a_call() {
    assert_refused(&[
        (
            json!({ "method": "*", "code": "Internal" }),
            "rules[0].code: \"Internal\" is no code of gRPC; write one of OK",
        ),
        (json!({ "method": "*", "answerCode": "OK" }), "rules[0].answerCode: an answer with OK has fields"),
        (
            json!({ "method": "*", "loseReply": true }),
            "rules[0].loseReply: true is not known here; write Unavailable",
        ),
        (json!({ "method": "*", "hang": false }), "rules[0].hang: write true, or leave it out"),
        (
            json!({ "method": "*", "crash": "Later" }),
            "rules[0].crash: \"Later\" is not known here; write Before or After",
        ),
        (
            json!({ "method": "*", "repeat": 2 }),
            "rules[0].repeat: 2 is not known here; write After or AtOnce",
        ),
        (json!({ "method": "*", "message": "m" }), "rules[0].message: goes with code"),
        (json!({ "method": "*", "hang": true, "message": "m" }), "rules[0].message: goes with code"),
        (
            json!({ "method": "*", "code": "INTERNAL", "hang": true }),
            "rules[0].hang: the rule has code already",
        ),
        (
            json!({ "method": "*", "loseReply": "Cut", "lie": "Empty" }),
            "rules[0].lie: the rule has loseReply already",
        ),
        (
            json!({ "method": "*", "code": "INTERNAL", "lie": "Empty" }),
            "rules[0].lie: an answer needs code: OK",
        ),
        (json!({ "method": "*", "lie": 1 }), "rules[0].lie: write the fields of the answer, or Empty"),
        (json!({ "method": "*", "lie": { "ready": true } }), "rules[0].lie: fields are those of one answer"),
        (
            json!({ "method": "a.B/C", "lie": { "ready": true } }),
            "rules[0].lie: fields are those of one answer",
        ),
        (
            json!({ "method": "Probe", "lie": { "redy": true } }),
            "rules[0].lie.redy: ProbeResponse has no such field",
        ),
        (
            json!({ "method": "*", "hang": true, "repeat": "After" }),
            "rules[0].repeat: the driver never sees this call",
        ),
        (
            json!({ "method": "*", "crash": "Before", "delayAnswer": "1s" }),
            "rules[0].delayAnswer: nothing is answered",
        ),
        (
            json!({ "method": "*", "code": "OK", "delayAnswer": "1s" }),
            "rules[0].delayAnswer: the driver is not asked",
        ),
    ]);
}

#[test]
fn all_faults_are_told_at_once() {
    let script = json!({ "sed": 1, "seed": -1, "rules": [{ "method": "*" }, { "delay": "x", "code": "Y" }] });
    let told = Script::read(&script).unwrap_err().to_string();
    let places: Vec<&str> = told.lines().filter_map(|line| line.split(": ").next()).collect();
    let mut wanted = vec!["sed", "seed", "rules[1].method", "rules[1].delay", "rules[1].code"];
    wanted.sort_unstable();
    let mut places = places;
    places.sort_unstable();
    assert_eq!(places, wanted, "{told}");
    let odd = Script::read(&json!([])).unwrap_err().to_string();
    assert_eq!(odd, "the script: write an object with the field rules");
    let odd = Script::read(&json!({ "rules": {} })).unwrap_err().to_string();
    assert_eq!(odd, "rules: write a list of rules");
}

#[test]
fn patterns() {
    for (pattern, text, like) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "ab", true),
        ("*", "", true),
        ("*b", "ab", true),
        ("*b", "ba", false),
        ("a*c*e", "abcde", true),
        ("a*c*e", "ae", false),
        ("ab*b", "ab", false),
        ("**", "x", true),
    ] {
        assert_eq!(matches(pattern, text), like, "{pattern} {text}");
    }
}
