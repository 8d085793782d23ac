//! The client against servers that answer by hand: every ordering, every dialect, and servers that break the rules.

mod blocking;
mod cancel;
mod death;
mod dialects;
mod dir;
mod flow;
mod limits;
mod turns;
mod walk;

mod world;
