//! Channels and identifiers: their creation, destruction and moves.

use super::endpoint::{Endpoint, State};
use super::{Choice, Client, Manager, PortSpace, Refused, Transport};
use std::collections::BTreeSet;
use std::time::Duration;

impl Manager {
    /// Creates a channel for events. Each identifier belongs to one.
    ///
    /// # Errors
    /// [`Refused::TooMany`].
    pub fn create_channel(&mut self, client: Client) -> Result<u32, Refused> {
        if self.channels.len() >= self.config.limits.channels {
            return Err(Refused::TooMany);
        }
        loop {
            self.last_channel = self.last_channel.wrapping_add(1);
            if self.last_channel != 0 && !self.channels.contains_key(&self.last_channel) {
                self.channels.insert(self.last_channel, client);
                return Ok(self.last_channel);
            }
        }
    }

    /// Destroys a channel and its identifiers.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`].
    pub fn destroy_channel(&mut self, now: Duration, client: Client, channel: u32) -> Result<(), Refused> {
        self.owned_channel(client, channel)?;
        self.end_channels(now, &BTreeSet::from([channel]));
        Ok(())
    }

    /// Removes everything that belongs to a client that is gone, and informs its peers.
    pub fn remove_client(&mut self, now: Duration, client: Client) {
        let its = self.channels.iter().filter(|(_, owner)| **owner == client);
        let channels = its.map(|(channel, _)| *channel).collect();
        self.end_channels(now, &channels);
    }

    fn end_channels(&mut self, now: Duration, channels: &BTreeSet<u32>) {
        self.events.retain(|event| !channels.contains(&event.channel));
        let of_it = |endpoint: &Endpoint| endpoint.channel.is_some_and(|channel| channels.contains(&channel));
        let ids: Vec<u32> = self.endpoints.iter().filter(|(_, e)| of_it(e)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.unheard = 0;
            }
            self.abandon(now, id);
        }
        self.channels.retain(|channel, _| !channels.contains(channel));
    }

    fn owned_channel(&self, client: Client, channel: u32) -> Result<(), Refused> {
        if self.channels.get(&channel) == Some(&client) { Ok(()) } else { Err(Refused::NoSuchId) }
    }

    /// Creates an identifier (`rdma_create_id`), whose events go to a channel.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`] if there is no such channel; [`Refused::TooMany`]; [`Refused::Parameter`] if port space
    /// and transport do not fit each other.
    pub fn create_id(
        &mut self,
        client: Client,
        channel: u32,
        space: PortSpace,
        transport: Transport,
    ) -> Result<u32, Refused> {
        self.owned_channel(client, channel)?;
        let datagram = transport == Transport::Datagram;
        if space == PortSpace::Tcp && datagram || space == PortSpace::Udp && !datagram {
            return Err(Refused::Parameter);
        }
        if self.endpoints.len() >= self.config.limits.ids {
            return Err(Refused::TooMany);
        }
        Ok(self.add(Endpoint::new(Some(channel), space, transport, self.config.mtu)))
    }

    /// Destroys an identifier (`rdma_destroy_id`). The peer of a connection is informed until it answers. The
    /// identifier's events are dropped, and so are requests to a listener that its program has not seen yet.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`].
    pub fn destroy_id(&mut self, now: Duration, client: Client, id: u32) -> Result<(), Refused> {
        self.owned(client, id)?;
        self.abandon(now, id);
        Ok(())
    }

    /// Takes away an endpoint's owner.
    fn abandon(&mut self, now: Duration, id: u32) {
        let Some(endpoint) = self.endpoints.get(&id) else { return };
        let (is_listener, has_events) = (endpoint.state == State::Listening, endpoint.unheard > 0);
        if is_listener {
            let unseen = self.events.iter().filter(|event| event.listener == Some(id)).map(|event| event.id);
            for request in unseen.collect::<Vec<_>>() {
                self.abandon(now, request);
            }
        }
        if has_events {
            self.events.retain(|event| event.id != id);
        }
        self.part(now, id);
        self.release_port(id);
        let Some(endpoint) = self.endpoints.get_mut(&id) else { return };
        endpoint.channel = None;
        if !matches!(endpoint.state, State::DreqSent | State::TimeWait) {
            self.set_state(id, State::Closed);
        }
    }

    /// Moves an identifier's events, including waiting ones, to another channel of the client (`rdma_migrate_id`).
    ///
    /// # Errors
    /// [`Refused::NoSuchId`], also if there is no such channel.
    pub fn migrate_id(&mut self, client: Client, id: u32, channel: u32) -> Result<(), Refused> {
        self.owned_channel(client, channel)?;
        self.owned(client, id)?.channel = Some(channel);
        for event in self.events.iter_mut().filter(|event| event.id == id) {
            event.channel = channel;
        }
        Ok(())
    }

    /// Sets an option (`rdma_set_option`).
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::Parameter`]; [`Refused::State`] if it is too late.
    pub fn set_option(&mut self, client: Client, id: u32, choice: Choice) -> Result<(), Refused> {
        let endpoint = self.owned(client, id)?;
        let is_new = endpoint.state == State::Idle;
        match choice {
            Choice::TypeOfService(value) => endpoint.type_of_service = value,
            Choice::AckTimeout(value) if value <= 31 => endpoint.ack_timeout = Some(value),
            Choice::AckTimeout(_) => return Err(Refused::Parameter),
            Choice::ReuseAddress(value) if is_new || endpoint.state == State::Bound => {
                endpoint.reuse_address = value;
            }
            Choice::OnlyIpv6(value) if is_new => endpoint.only_ipv6 = value,
            Choice::ReuseAddress(_) | Choice::OnlyIpv6(_) => return Err(Refused::State),
        }
        Ok(())
    }
}
