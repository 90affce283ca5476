//! hiroma-server
