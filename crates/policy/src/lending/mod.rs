//! What a machine lends of its memory, and to whom.
//!
//! | Part | Decides |
//! |---|---|
//! | [`share`] | how much of what is lent a tenant gets |

pub mod share;
