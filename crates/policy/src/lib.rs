//! hiroma-policy
