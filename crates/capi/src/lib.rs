//! hiroma-capi
