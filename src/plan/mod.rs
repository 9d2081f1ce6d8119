//! DECISIONS: pure functions from what is wanted and seen to the next step.
