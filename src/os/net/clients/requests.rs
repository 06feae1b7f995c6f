//! One whole request of a client: whether it may go on while it comes, who asks, what is refused before the core is asked,
//! and what is written down of it. Never decides what an ask does.

use super::{Clients, LookedUp, imports};
use crate::api::audit::{self, AuditOutcome, Draft};
use crate::api::rest::{self, Interpreted};
use crate::core::Core;
use crate::core::contract::{Input, Now};
use crate::ids::ConnId;
use crate::limits::{BUFFER_KEPT_MAX, LOOK_UP_WAIT, OAUTH_KEYS_WAIT};
use crate::model::definition::Definition;
use crate::model::fault::{Code, Fault, Outcome};
use crate::os::event_loop::lookups::{Question, Wants};
use crate::os::logs::audit::Audit;
use crate::os::net::client::{Client, Doing, Via};
use crate::os::net::oauth::{AuthServer, Look};
use crate::os::net::proxy;
use crate::os::net::refusals::{self, crowded_out, overloaded, too_often, unwritable};
use crate::shares::Shares;
use crate::wire::http_in::{Method, Request};
use crate::wire::http_out::Response;

impl Clients {
    /// The disk was looked at for this client's request, which is read again: meanwhile it may mean something else.
    pub fn looked(&mut self, id: ConnId, place: LookedUp, core: &mut Core, shares: &mut Shares, now: Now) {
        if self.map.get(&id).is_some_and(|client| client.doing == Doing::LookingUp && client.has_request()) {
            self.request(id, Some(place), core, shares, now);
        }
    }

    /// The core has answered, and something is still looked up for that answer.
    pub fn hold(&mut self, id: ConnId) {
        if let Some(client) = self.map.get_mut(&id).filter(|client| client.doing == Doing::Waiting) {
            client.doing = Doing::LookingUp;
        }
    }

    /// `place`: what the disk has said to it. Such a request is read the second time, and counts once.
    pub(super) fn request(
        &mut self,
        id: ConnId,
        place: Option<LookedUp>,
        core: &mut Core,
        shares: &mut Shares,
        now: Now,
    ) {
        let client = self.map.get_mut(&id).expect("it is being served");
        if look_at_bearer(&mut self.auth_server, client, core, now) == Look::Wait {
            return self.touched.push(id);
        }
        client.doing = Doing::Waiting;
        client.deadline_ms = None;
        let request = Via::hear(&mut client.via, client.parser.request());
        (client.keep_alive, client.http10) = (request.keep_alive && core.is_accepting(), request.http10);
        client.head_only = request.method == Method::Head;
        match proxy::aim(&request, &client.peer, &mut client.shown, core) {
            Ok(None) => {}
            Ok(Some(aim)) => {
                if let Err(fault) = self.rates.take(aim.who(), 1, now.mono_ms) {
                    return self.respond(id, rest::refuse(&fault.outcome(Outcome::NotSent)), shares, now);
                }
                core.token_used(aim.who());
                let client = self.remove(id, shares).expect("it is being served");
                self.handed.push(aim.hand(client.hand_over()));
                return;
            }
            Err(response) => {
                note_denied(&mut self.audit, client, &request, response.status, now);
                return self.respond(id, response, shares, now);
            }
        }
        let understood = rest::interpret(&request, core.tokens(), &client.peer, &mut client.shown);
        let (understood, place) = match (understood, place) {
            (Ok(Interpreted::Import { who, import }), Some(LookedUp::Import(read))) => {
                let ask = |candidates| Interpreted::Ask { who, ask: imports::ask(import, candidates) };
                (read.map(ask), None)
            }
            other => other,
        };
        let response = match understood {
            Ok(Interpreted::Import { who, import }) => match client.holding.belongs_to(&who, shares) {
                Err(short) => rest::refuse(&overloaded(short)),
                Ok(()) => {
                    let document = import.document();
                    return match self.read_document(id, document, now) {
                        Ok(()) => {}
                        Err(fault) => self.respond(id, rest::refuse(&fault), shares, now),
                    };
                }
            },
            Ok(Interpreted::Ask { who, ask }) => {
                let room = client.holding.belongs_to(&who, shares);
                let room = room.map_err(|short| refusals::unread(overloaded(short), &request.path));
                if place.is_none() {
                    client.drafts = audit::drafts(&who, &ask, self.audit.has_calls());
                }
                let admitted = room.and_then(|()| match place {
                    None => too_often(&mut self.rates, &who, &ask, now),
                    Some(_) => Ok(()),
                });
                let written = admitted.and_then(|()| unwritable(&self.audit, &client.drafts));
                match written.map_or_else(Next::Refuse, |()| Next::of(core.proposed(&who, &ask).as_deref(), place)) {
                    Next::Ask => {
                        if client.hung_up {
                            self.touched.push(id);
                        }
                        core.handle(Input::Asked { conn: id, who, ask }, now);
                        return forget_request(client, shares);
                    }
                    Next::LookUp(wants) => {
                        client.doing = Doing::LookingUp;
                        client.deadline_ms = Some(now.mono_ms + LOOK_UP_WAIT.as_millis() as u64);
                        self.questions.push(Question::Definition { conn: id, wants });
                        return self.touched.push(id);
                    }
                    Next::Refuse(refusal) => {
                        self.note(id, AuditOutcome::Failed, now);
                        return self.respond(id, refusal, shares, now);
                    }
                }
            }
            Ok(Interpreted::Direct(response)) => response,
            Ok(Interpreted::Prove(challenge)) => rest::prove(&challenge, core.tokens(), &client.socket.address()),
            Ok(Interpreted::ResourceMetadata { path }) => rest::resource_metadata(&path, core.tokens()),
            Ok(Interpreted::Upgrade { who, program }) => match client.holding.belongs_to(&who, shares) {
                Err(short) => rest::refuse(&overloaded(short)),
                Ok(()) => {
                    client.drafts = audit::upgrade(&who, program.as_deref());
                    match unwritable(&self.audit, &client.drafts) {
                        Err(refusal) => refusal,
                        Ok(()) => {
                            self.upgrades.push((id, program));
                            return forget_request(client, shares);
                        }
                    }
                }
            },
            Ok(Interpreted::Audit { who, query }) => match client.holding.belongs_to(&who, shares) {
                Err(short) => rest::refuse(&overloaded(short)),
                Ok(()) if self.audit.ask(id, query) => return forget_request(client, shares),
                Ok(()) => {
                    let why = "too many others read the audit log just now";
                    rest::refuse(&Fault::new(Code::Unavailable, why).retry_after_ms(1_000))
                }
            },
            Err(fault) => rest::refuse(&fault),
        };
        note_denied(&mut self.audit, client, &request, response.status, now);
        // Of one that was let in when it was read for the first time.
        self.note(id, AuditOutcome::Failed, now);
        self.respond(id, response, shares, now);
    }

    // --- the authorization server -----------------------------------------------------------------------------------

    /// The server has told its keys, or why not: whoever has waited for that goes on where it was.
    pub fn keys_heard(&mut self, core: &mut Core, shares: &mut Shares, now: Now) {
        let waited = self.auth_server.as_mut().map(|server| server.heard(now)).unwrap_or_default();
        for id in waited {
            let Some(client) = self.map.get_mut(&id).filter(|client| client.doing == Doing::LookingUp) else {
                continue;
            };
            client.doing = Doing::Reading;
            client.rearm(now.mono_ms);
            match client.has_request() {
                true => self.request(id, None, core, shares, now),
                false => self.serve(id, core, shares, now),
            }
        }
    }

    // --- the audit log ----------------------------------------------------------------------------------------------

    /// The lines that waited for this outcome.
    pub(super) fn note(&mut self, id: ConnId, outcome: AuditOutcome, now: Now) {
        if let Some(client) = self.map.get_mut(&id) {
            write_down(&mut self.audit, client, outcome, now);
        }
    }

    /// What the thread that has the log says.
    pub fn audit_heard(&mut self, shares: &mut Shares, now: Now) {
        for (id, lines) in self.audit.heard() {
            let response = match lines {
                Ok(body) => Response::new(200, "application/json", body),
                Err(why) => {
                    rest::refuse(&Fault::new(Code::Unavailable, format!("the audit log cannot be read: {why}")))
                }
            };
            let fits = self.map.get_mut(&id).map(|client| client.count_with(response.body.len(), shares));
            match fits {
                Some(Ok(())) => self.respond(id, response, shares, now),
                Some(Err(short)) => self.respond(id, crowded_out(short), shares, now),
                None => {}
            }
        }
    }

    pub fn close_audit(&mut self) {
        self.audit.close();
    }
}

/// What the core has read of a request it has kept: the bytes make room for others while the client waits.
fn forget_request(client: &mut Client, shares: &mut Shares) {
    client.parser.finish();
    client.count(shares).expect("a buffer that shrinks fits");
}

/// The lines of the audit log that waited for this outcome.
pub(super) fn write_down(audit: &mut Audit, client: &mut Client, outcome: AuditOutcome, now: Now) {
    if client.drafts.is_empty() {
        return;
    }
    let source = client.source();
    for draft in std::mem::take(&mut client.drafts) {
        audit.write(draft.line(outcome, source.clone(), now.unix_ms));
    }
}

/// What becomes of an ask that was understood.
enum Next {
    Ask,
    LookUp(Wants),
    Refuse(Response),
}

impl Next {
    /// Is there on the disk what the definition names?
    fn of(proposed: Option<&Definition>, place: Option<LookedUp>) -> Next {
        match (proposed.and_then(Wants::of), place) {
            (None, _) => Next::Ask,
            (Some(wants), Some(LookedUp::Definition { wants: looked, fault })) if looked == wants => match fault {
                Some(fault) => Next::Refuse(rest::refuse(&fault)),
                None => Next::Ask,
            },
            (Some(wants), _) => Next::LookUp(wants),
        }
    }
}

/// Somebody was not let in: by a 401 or a 403.
pub(super) fn note_denied(audit: &mut Audit, client: &Client, request: &Request<'_>, status: u16, now: Now) {
    if matches!(status, 401 | 403) {
        let method = format!("{:?}", request.method).to_ascii_uppercase();
        // Whoever was not let in is not whom an earlier request of the connection has shown.
        let draft = Draft::denied(client.shown.who().filter(|_| status == 403), &method, &request.path, status);
        audit.write(draft.line(AuditOutcome::Denied, client.source(), now.unix_ms));
    }
}

/// A token of the authorization server is looked at before the rest, as soon as there is a head. `Wait`: its key is not known
/// yet, and the client is not read on until the server has told its keys.
pub(super) fn look_at_bearer(server: &mut Option<AuthServer>, client: &mut Client, core: &Core, now: Now) -> Look {
    let Some(server) = server else { return Look::Done };
    let request = match client.has_request() {
        true => client.parser.request(),
        false => match client.parser.head() {
            Some(head) => head,
            None => return Look::Done,
        },
    };
    let look = server.look_at(client.id, &request, &mut client.shown, core.tokens(), now);
    if look == Look::Wait {
        client.doing = Doing::LookingUp;
        client.deadline_ms = Some(now.mono_ms + OAUTH_KEYS_WAIT.as_millis() as u64);
    }
    look
}

/// May a request that is still coming go on? Looked at when its head is there, and whenever it has grown.
pub(super) fn admissible(client: &mut Client, shares: &mut Shares, core: &Core, now: Now) -> Result<(), Response> {
    if client.rearm_if_moved(now.mono_ms)
        && let Some(head) = client.parser.head()
    {
        if let Some(response) = proxy::refuse_early(&head, &client.peer, &mut client.shown, core) {
            return Err(response);
        }
        if let Some(who) = client.shown.who() {
            let counted = client.holding.belongs_to(who, shares);
            counted.map_err(|short| refusals::unread(overloaded(short), &head.path))?;
        }
    }
    // What nobody has shown a token for is answered from its head alone.
    if client.parser.held() > BUFFER_KEPT_MAX && client.holding.owner().is_stranger() {
        let why = format!("without a token a body of more than {BUFFER_KEPT_MAX} bytes is not read");
        return Err(rest::refuse(&Fault::new(Code::PayloadTooLarge, why)));
    }
    client.count(shares).map_err(|short| match client.parser.head() {
        Some(head) => refusals::unread(overloaded(short), &head.path),
        None => rest::refuse(&overloaded(short)),
    })
}
