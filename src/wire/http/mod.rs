//! The client side of HTTP/1.1: requests as bytes, and answers from bytes as they come. Pure; whoever has the connection
//! feeds and takes. Addresses are here too, because a request says what it was sent to.

pub mod request;
pub mod response;
pub mod url;
