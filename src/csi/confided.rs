//! What a driver was told in confidence lately, by whoever calls it here: it may repeat that in any answer, also in one to a request
//! that has no secrets.
use std::any::Any;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::failure::Failure;
use super::hiding::{hidden, searched};
use super::proto::{
    ControllerGetVolumeResponse, ListVolumesResponse, NodeGetVolumeStatsResponse,
    ValidateVolumeCapabilitiesResponse,
};

/// How many Secrets of a driver are searched for; who uses more has the ones that were sent last kept out.
const MOST_KEPT: usize = 16;

/// The Secrets that a driver was sent last. Clones share them: all processes of a driver here have one.
#[derive(Clone, Default)]
pub struct Confided(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// The values of each, the one that was sent last at the end.
    secrets: VecDeque<Vec<String>>,
    /// What is searched for, as [`searched`] has it.
    texts: Arc<[String]>,
}

/// Whatever a driver was told in confidence is not shown.
impl fmt::Debug for Confided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confided").finish_non_exhaustive()
    }
}

impl Confided {
    /// Keeps what is sent now, in front of what was sent before.
    pub(crate) fn tell(&self, secrets: Option<&BTreeMap<String, String>>) -> Told {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(secrets) = secrets.filter(|secrets| !secrets.is_empty()) {
            let known = kept.secrets.iter().position(|known| known.iter().eq(secrets.values()));
            match known.and_then(|at| kept.secrets.remove(at)) {
                Some(known) => kept.secrets.push_back(known),
                None => {
                    kept.secrets.push_back(secrets.values().cloned().collect());
                    let most = kept.secrets.len().saturating_sub(MOST_KEPT);
                    kept.secrets.drain(..most);
                    kept.texts = searched(kept.secrets.iter().flatten()).into();
                }
            }
        }
        Told { sent: Arc::clone(&kept.texts), confided: self.clone() }
    }

    fn texts(&self) -> Arc<[String]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner).texts)
    }
}

/// What the answer to one request may repeat: what was sent with it or before, and what was sent since.
pub(crate) struct Told {
    sent: Arc<[String]>,
    confided: Confided,
}

impl Told {
    /// A text without it.
    pub(crate) fn hidden<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let (now, rest) = (self.confided.texts(), hidden(text, &self.sent));
        if Arc::ptr_eq(&now, &self.sent) {
            return rest;
        }
        let rest = hidden(&rest, &now).into_owned();
        Cow::Owned(rest)
    }

    /// What was made of an answer that is OK and cannot be used, without what it repeats.
    pub(crate) fn of_answer(&self, failure: Failure) -> Failure {
        let message = self.hidden(&failure.message).into_owned();
        Failure { message, ..failure }
    }

    /// An answer of which no text for people repeats it.
    pub(crate) fn kept_out(&self, answer: &mut dyn Any) {
        // Many volumes of a list may say the same.
        let mut known: HashMap<String, String> = HashMap::new();
        for text in texts(answer).into_iter().filter(|text| !text.is_empty()) {
            if let Some(rest) = known.get(text.as_str()) {
                text.clone_from(rest);
                continue;
            }
            let rest = self.hidden(text).into_owned();
            known.insert(std::mem::replace(text, rest.clone()), rest);
        }
    }
}

/// The texts for people in an answer that is OK.
fn texts(answer: &mut dyn Any) -> Vec<&mut String> {
    if answer.is::<ListVolumesResponse>() {
        let answer = answer.downcast_mut::<ListVolumesResponse>().into_iter();
        let told = answer.flat_map(|answer| &mut answer.entries).filter_map(|entry| entry.status.as_mut());
        return told.filter_map(|told| Some(&mut told.volume_condition.as_mut()?.message)).collect();
    }
    if answer.is::<ControllerGetVolumeResponse>() {
        let answer = answer.downcast_mut::<ControllerGetVolumeResponse>().into_iter();
        let told = answer.filter_map(|answer| answer.status.as_mut());
        return told.filter_map(|told| Some(&mut told.volume_condition.as_mut()?.message)).collect();
    }
    if answer.is::<NodeGetVolumeStatsResponse>() {
        let answer = answer.downcast_mut::<NodeGetVolumeStatsResponse>().into_iter();
        return answer.filter_map(|answer| Some(&mut answer.volume_condition.as_mut()?.message)).collect();
    }
    let answer = answer.downcast_mut::<ValidateVolumeCapabilitiesResponse>().into_iter();
    answer.map(|answer| &mut answer.message).collect()
}

#[cfg(test)]
mod tests {
    use super::super::proto::VolumeCondition;
    use super::*;

    fn secret(value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("password".to_owned(), value.to_owned())])
    }

    #[test]
    fn what_was_sent_with_any_of_the_last_secrets_is_kept_out_of_any_answer() {
        let confided = Confided::default();
        let first = confided.tell(Some(&secret("first-s3cret")));
        // Sent by another process of the driver while the first call is under way.
        confided.clone().tell(Some(&secret("other-s3cret")));
        let later = confided.tell(None);
        for told in [&first, &later] {
            let text = told.hidden("disk of first-s3cret and other-s3cret");
            assert_eq!(text, "disk of <redacted> and <redacted>");
        }
        for n in 0..MOST_KEPT {
            confided.tell(Some(&secret(&format!("word-{n:04}-of-many"))));
            // What is sent again is not forgotten.
            confided.tell(Some(&secret("other-s3cret")));
        }
        let now = confided.tell(None);
        assert_eq!(now.hidden("first-s3cret other-s3cret"), "first-s3cret <redacted>");
        assert_eq!(first.hidden("first-s3cret"), "<redacted>", "its own request had it");
        assert_eq!(format!("{confided:?}"), "Confided { .. }");
    }

    #[test]
    fn texts_for_people_in_answers_that_are_ok_are_searched() {
        let confided = Confided::default();
        let told = confided.tell(Some(&secret("hunter22-hunter22")));
        let condition =
            || Some(VolumeCondition { abnormal: true, message: "login hunter22-hunter22 failed".into() });
        let mut stats = NodeGetVolumeStatsResponse { usage: Vec::new(), volume_condition: condition() };
        let status = || super::super::proto::list_volumes_response::VolumeStatus {
            volume_condition: condition(),
            ..Default::default()
        };
        let entry =
            || super::super::proto::list_volumes_response::Entry { volume: None, status: Some(status()) };
        let mut list = ListVolumesResponse { entries: vec![entry(), entry()], next_token: String::new() };
        let got = super::super::proto::controller_get_volume_response::VolumeStatus {
            volume_condition: condition(),
            ..Default::default()
        };
        let mut got = ControllerGetVolumeResponse { volume: None, status: Some(got) };
        let mut judged = ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: "login hunter22-hunter22 failed".into(),
        };
        // What leaves nothing of a message leaves nothing of these.
        for written in
            ["login Basic dTpodW50ZXIyMi1odW50ZXIyMg== failed".to_owned(), "hunter22-hunter22 ".repeat(2000)]
        {
            let condition = VolumeCondition { abnormal: true, message: written };
            let mut stats =
                NodeGetVolumeStatsResponse { usage: Vec::new(), volume_condition: Some(condition) };
            told.kept_out(&mut stats);
            assert!(texts(&mut stats)[0].starts_with("(not shown"));
        }
        let answers: [&mut dyn Any; 4] = [&mut stats, &mut list, &mut got, &mut judged];
        for answer in answers {
            told.kept_out(answer);
            let said = texts(answer);
            assert!(!said.is_empty());
            assert!(said.iter().all(|text| *text == "login <redacted> failed"), "{said:?}");
        }
    }
}
