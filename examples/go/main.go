// Attaches a container to a network by Viaduct's API, waits until it can send, prints what changes on the host
// meanwhile, and takes it away at the end of its input. docs/api.md says how to generate the package api.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"example.org/viaduct/api"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: attach SOCKET NETWORK NAME ADDRESS")
		os.Exit(2)
	}
	if err := attach(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		refused := status.Convert(err)
		fmt.Fprintf(os.Stderr, "%s: %s\n", refused.Code(), refused.Message())
		os.Exit(1)
	}
}

func attach(socket, network, name, address string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The name in requests: a path is not one that HTTP/2 servers take.
	connection, err := grpc.Dial("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("viaduct"))
	if err != nil {
		return err
	}
	defer connection.Close()
	viaduct := api.NewViaductClient(connection)

	mac := "02:00:00:00:0a:01"
	guest := &api.Guest{
		Name: name, Network: network, Kind: "tap", Device: &name, Mac: &mac, Addresses: []string{address},
	}
	object := &api.Object{Object: &api.Object_Guest{Guest: guest}}
	changes, err := transact(ctx, viaduct, &api.Operation{Operation: &api.Operation_Create{Create: object}})
	if err != nil {
		return err
	}
	for _, change := range changes.Changes {
		fmt.Println(change.What, change.Object)
	}
	go watch(ctx, viaduct, changes.Revision)
	for {
		table, err := viaduct.Table(ctx, &api.TableRequest{Table: api.TableName_TABLE_NAME_VIF})
		if err != nil {
			return err
		}
		if up(table.Vifs, name) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Printf("%s is up: close the input to remove it\n", name)
	io.Copy(io.Discard, os.Stdin)
	remove := &api.Delete{Key: &api.Key{Kind: api.Kind_KIND_GUEST, Name: name}, AllowMissing: true}
	_, err = transact(ctx, viaduct, &api.Operation{Operation: &api.Operation_Delete{Delete: remove}})
	return err
}

// transact carries out one step. The request's id keeps it from being carried out twice: whoever gets no answer may send
// the same request again.
func transact(ctx context.Context, viaduct api.ViaductClient, step *api.Operation) (*api.Changes, error) {
	id := make([]byte, 16)
	rand.Read(id)
	request := &api.TransactRequest{Operations: []*api.Operation{step}, RequestId: fmt.Sprintf("%x", id)}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return viaduct.Transact(ctx, request, grpc.WaitForReady(true))
}

// watch prints what changes after a revision.
func watch(ctx context.Context, viaduct api.ViaductClient, revision uint64) {
	changes, err := viaduct.Watch(ctx, &api.WatchRequest{Revision: &revision})
	for err == nil {
		var news *api.WatchReply
		if news, err = changes.Recv(); err == nil {
			for _, difference := range news.Differences {
				fmt.Println("revision", news.Revision, difference.Key.Kind, difference.Key.Name)
			}
		}
	}
}

func up(vifs []*api.VifEntry, name string) bool {
	for _, vif := range vifs {
		if vif.Name == name {
			return vif.Up
		}
	}
	return false
}
