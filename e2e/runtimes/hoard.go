// SPDX-License-Identifier: Apache-2.0 OR MIT

// Starts, holds 32 MiB in goroutines, and then as much as it gets. Go's own allocator does not
// survive a refusal: it says "out of memory" and exits with 2.
package main

import "fmt"

func main() {
	parts := make(chan []byte)
	var held [][]byte
	for i := 0; i < 32; i++ {
		go func() {
			part := make([]byte, 1<<20)
			for at := 0; at < len(part); at += 4096 {
				part[at] = 1
			}
			parts <- part
		}()
	}
	for i := 0; i < 32; i++ {
		held = append(held, <-parts)
	}
	fmt.Println("started")
	for i := 0; i < 4096; i++ {
		part := make([]byte, 1<<20)
		for at := 0; at < len(part); at += 4096 {
			part[at] = 1
		}
		held = append(held, part)
	}
	fmt.Println("no end", len(held))
}
