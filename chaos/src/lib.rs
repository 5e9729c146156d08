//! Starts, kills, stops and cuts off real Tanist processes and their stores.
