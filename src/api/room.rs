//! How much room a plugin's backend has for volumes of a class at a place: the question and the answer, both at a PluginInstance.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::{Map, Segments, Time};

/// What an instance is asked about: the volumes of one class at one place. The controllers ask it, for as long as there is the
/// class, and its node keeps the answer near the truth.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoomQuestion {
    /// The VolumeClass.
    pub class: String,
    /// What the class says to the driver, as CreateVolume has it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map,
    /// The place; wherever the instance makes volumes when empty.
    #[serde(default, skip_serializing_if = "Segments::is_empty")]
    pub segments: Segments,
}

/// What the plugin answered (GetCapacity). It may be old news: nothing is refused because of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// The question's.
    pub class: String,
    /// The question's.
    #[serde(default, skip_serializing_if = "Segments::is_empty")]
    pub segments: Segments,
    /// The space that is left, in bytes; absent where there is no answer. Told anew when it has moved by a twentieth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<i64>,
    /// The largest volume that may be asked for, in bytes; absent where the plugin does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest_bytes: Option<i64>,
    /// When it was answered so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Why there is no answer; empty when there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Room {
    /// Whether it is the answer to this question, or was to one before.
    pub fn answers(&self, question: &RoomQuestion) -> bool {
        self.class == question.class && self.segments == question.segments
    }

    /// Whether this is no news to who was told the other: nothing has moved by a twentieth, nor come to be or gone.
    pub fn is_like(&self, told: &Self) -> bool {
        let near = |now: Option<i64>, then: Option<i64>| match (now, then) {
            (Some(now), Some(then)) => {
                now == then || now.min(then) > 0 && now.abs_diff(then) <= then.unsigned_abs() / 20
            }
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        (&self.class, &self.segments, &self.message) == (&told.class, &told.segments, &told.message)
            && near(self.available_bytes, told.available_bytes)
            && near(self.largest_bytes, told.largest_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_that_has_hardly_moved_is_no_news() {
        let of = |available| Room { class: "c".into(), available_bytes: available, ..Room::default() };
        for (then, now, like) in [
            (Some(100), Some(100), true),
            (Some(100), Some(95), true),
            (Some(100), Some(105), true),
            (Some(100), Some(94), false),
            (Some(1), Some(0), false),
            (Some(0), Some(1), false),
            (Some(0), Some(0), true),
            (None, None, true),
            (None, Some(1), false),
            (Some(1), None, false),
        ] {
            assert_eq!(of(now).is_like(&of(then)), like, "{then:?} {now:?}");
        }
        let largest = Room { largest_bytes: Some(1), ..of(Some(100)) };
        assert!(!largest.is_like(&of(Some(100))));
        let other = Room { class: "d".into(), ..of(Some(100)) };
        assert!(!other.is_like(&of(Some(100))));
    }
}
