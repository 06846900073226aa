//! The core of RunGuard behind a C-like interface, for the TypeScript package.

mod bedrock;
mod boundary;
mod breakers;
mod budgets;
mod loops;
mod notices;
mod prices;
mod runs;
mod services;
mod stall;
mod texts;
mod tools;
