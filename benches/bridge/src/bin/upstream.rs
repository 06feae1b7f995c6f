//! An MCP server over Streamable HTTP that costs as little as one can: a thread for each connection, hard-coded parsing, no
//! error handling. What a link of the daemon and a reverse proxy are both measured in front of.
//! Usage: upstream PORT (0: any); prints the port.
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};

fn main() -> Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("a port");
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        // A thousand of them wait on streams that nothing comes of.
        std::thread::Builder::new().stack_size(64 << 10).spawn(move || { let _ = serve(stream); })?;
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::with_capacity(4 << 10, stream.try_clone()?);
    let (mut line, mut body, mut out) = (String::new(), vec![], vec![]);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 { return Ok(()); }
        let listens = line.starts_with("GET ");
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() { break; }
            if let Some((key, value)) = line.split_once(':') {
                if key.eq_ignore_ascii_case("content-length") { length = value.trim().parse().unwrap_or(0); }
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
        if listens {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")?;
            reader.read_line(&mut line)?;
            return Ok(());
        }
        out.clear();
        answer(std::str::from_utf8(&body).unwrap_or(""), &mut out)?;
        stream.write_all(&out)?;
    }
}

/// What stands after `key`, up to a comma, a brace or a quote.
fn after<'a>(body: &'a str, key: &str) -> Option<&'a str> {
    let rest = &body[body.find(key)? + key.len()..];
    Some(&rest[..rest.find([',', '}', '"']).unwrap_or(rest.len())])
}

fn answer(body: &str, out: &mut Vec<u8>) -> Result<()> {
    let Some(id) = after(body, "\"id\":") else { return out.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n") };
    let said = match after(body, "\"method\":\"") {
        Some("tools/call") => {
            let size = after(body, "\"size\":").and_then(|size| size.parse().ok()).unwrap_or(0);
            format!(r#""result":{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(size))
        }
        Some("tools/list") => r#""result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}"#.to_string(),
        Some("initialize") => r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"upstream","version":"1"}}"#.to_string(),
        Some("ping") => r#""result":{}"#.to_string(),
        _ => r#""error":{"code":-32601,"message":"Method not found"}"#.to_string(),
    };
    let session = if said.contains("serverInfo") { "Mcp-Session-Id: s-1\r\n" } else { "" };
    let length = said.len() + id.len() + r#"{"jsonrpc":"2.0","id":,}"#.len();
    write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{session}Content-Length: {length}\r\n\r\n{{\"jsonrpc\":\"2.0\",\"id\":{id},{said}}}")
}
