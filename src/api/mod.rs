pub mod auth;
pub mod fault;
pub mod register;
pub mod rest;
pub mod route;
pub mod status;
