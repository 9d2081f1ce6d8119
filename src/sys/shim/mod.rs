//! The small process that every task runs under.
