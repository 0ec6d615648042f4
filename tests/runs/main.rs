//! Training runs over their whole life: stopped, resumed, repeated, restarted at chance, and measured on held-out images.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod at_chance;
mod head_fit;
mod held_out;
mod library;
mod probe_first;
mod repeat;
mod resume;
mod threads;
mod unsaved;
