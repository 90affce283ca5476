//! hiroma-preload
