"""The folder of three brokers, as far as it needs no broker."""

import os
from pathlib import Path

import pytest

from sessionary.infra.local.errors import BrokerCountDiffers, StartFailed
from sessionary.infra.local.kafka.cluster import (
    LocalBroker,
    broker_processes,
    choose_broker_count,
    plan_cluster,
    run_node,
    write_cluster,
)
from sessionary.infra.local.kafka.node import ProxiedListener


def test_a_cluster_has_three_brokers_with_ports_of_their_own_and_is_recorded(tmp_path: Path) -> None:
    cluster = plan_cluster(tmp_path)
    assert list(tmp_path.iterdir()) == []
    ports = [port for node in cluster.nodes for port in (node.port, node.controller_port)]
    assert len(set(ports)) == 6
    assert len({node.directory_id for node in cluster.nodes}) == 3
    write_cluster(tmp_path, cluster)
    assert plan_cluster(tmp_path) == cluster
    moved = plan_cluster(tmp_path, 20_000)
    assert moved.bootstrap_servers == "127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002"
    assert [node.controller_port for node in moved.nodes] == [node.controller_port for node in cluster.nodes]


def test_a_folder_keeps_its_number_of_brokers(tmp_path: Path) -> None:
    assert choose_broker_count(tmp_path) == 1
    assert choose_broker_count(tmp_path, 3) == 3
    write_cluster(tmp_path, plan_cluster(tmp_path))
    assert choose_broker_count(tmp_path) == choose_broker_count(tmp_path, 3) == 3
    with pytest.raises(BrokerCountDiffers, match=r"made for 3 brokers, not for 1.*use another folder"):
        LocalBroker(tmp_path, None, tmp_path / "log")


def test_a_folder_of_one_broker_is_not_made_into_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"cluster_id": "c", "port": 1, "controller_port": 2}')
    assert choose_broker_count(tmp_path) == 1
    with pytest.raises(BrokerCountDiffers, match="made for 1 broker, not for 3"):
        choose_broker_count(tmp_path, 3)


def test_one_broker_is_a_process_and_three_are_three(tmp_path: Path) -> None:
    data = str(tmp_path)
    assert broker_processes(tmp_path, "h:1") == [("broker", "h:1", ("--data", data, "--port", "1"))]
    assert broker_processes(tmp_path, "h:1,h:2,h:3") == [
        (f"broker-{number}", f"h:{number}", ("--data", data, "--node", str(number))) for number in (1, 2, 3)
    ]


def test_the_nodes_form_one_quorum_and_replicate_the_internal_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.local.kafka.node.kafka_jars", lambda _progress: [])
    formats: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        "sessionary.infra.local.kafka.node._format_storage", lambda _data, _id, voters, _java: formats.append(voters)
    )
    monkeypatch.setattr(os, "execve", lambda _program, _argv, _env: None)
    cluster = plan_cluster(tmp_path)
    write_cluster(tmp_path, cluster)
    said: list[str] = []
    for number in (1, 2, 3):
        run_node(tmp_path, number, said.append)
        assert said[-1] == f"the broker starts, and listens on 127.0.0.1:{cluster.nodes[number - 1].port}"
        lines = (tmp_path / str(number) / "server.properties").read_text().splitlines()
        controllers = ",".join(f"127.0.0.1:{node.controller_port}" for node in cluster.nodes)
        assert {f"node.id={number}", f"controller.quorum.bootstrap.servers={controllers}"} <= set(lines)
        assert {
            "offsets.topic.replication.factor=3",
            "transaction.state.log.replication.factor=3",
            "transaction.state.log.min.isr=2",
            "min.insync.replicas=2",
        } <= set(lines)
    voters = ",".join(
        f"{number}@127.0.0.1:{node.controller_port}:{node.directory_id}" for number, node in enumerate(cluster.nodes, 1)
    )
    assert formats == [("--initial-controllers", voters)] * 3


def test_a_node_with_a_proxied_listener_advertises_the_proxy_and_keeps_its_other_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.local.kafka.node.kafka_jars", lambda _progress: [])
    monkeypatch.setattr("sessionary.infra.local.kafka.node._format_storage", lambda *_: None)
    monkeypatch.setattr(os, "execve", lambda _program, _argv, _env: None)
    cluster = plan_cluster(tmp_path)
    write_cluster(tmp_path, cluster)
    properties = tmp_path / "1" / "server.properties"
    run_node(tmp_path, 1, lambda _line: None)
    without = properties.read_text()
    assert "PROXIED" not in without
    run_node(tmp_path, 1, lambda _line: None, ProxiedListener(20_000, 30_000))
    direct, control = cluster.nodes[0].port, cluster.nodes[0].controller_port
    assert properties.read_text().removeprefix(without).splitlines() == [
        f"listeners=PLAINTEXT://127.0.0.1:{direct},PROXIED://127.0.0.1:20000,CONTROLLER://127.0.0.1:{control}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{direct},PROXIED://127.0.0.1:30000",
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
    ]


def test_a_node_needs_a_cluster_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="sessionary up --brokers 3"):
        run_node(tmp_path, 1, lambda _line: None)
    write_cluster(tmp_path, plan_cluster(tmp_path))
    with pytest.raises(StartFailed, match="no cluster with a node 4"):
        run_node(tmp_path, 4, lambda _line: None)
