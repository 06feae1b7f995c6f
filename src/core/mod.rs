pub mod contract;
pub mod definition;
pub mod entropy;
