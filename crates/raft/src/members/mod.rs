//! Members: who belongs to a group, who may vote and stand, and how a replica learns that its group goes on
//! without it.

pub(crate) mod dismissal;
pub(crate) mod first_answer;
pub(crate) mod member;
pub(crate) mod membership;
pub(crate) mod standing;
