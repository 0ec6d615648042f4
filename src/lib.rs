//! Vitrine.
