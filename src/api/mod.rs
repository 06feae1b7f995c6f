pub mod auth;
pub mod fault;
pub mod json;
#[cfg(test)]
pub mod mutation;
pub mod quantity;
pub mod register;
pub mod rest;
pub mod route;
pub mod status;
