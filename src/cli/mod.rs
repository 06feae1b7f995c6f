pub mod doctor;
pub mod http;
pub mod table;
