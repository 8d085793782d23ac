//! The client against hand-written servers: every order of answers, every dialect, and servers that break the rules.

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
