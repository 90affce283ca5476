//! hiroma-wire
