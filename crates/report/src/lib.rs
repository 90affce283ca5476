//! hiroma-report
