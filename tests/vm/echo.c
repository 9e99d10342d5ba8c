/* Returns every UDP datagram that comes to the port it is given. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>

int main(int count, char **words)
{
    static char data[65536];
    struct sockaddr_in from, here = {.sin_family = AF_INET, .sin_port = htons(count > 1 ? atoi(words[1]) : 0)};
    int port = socket(AF_INET, SOCK_DGRAM, 0);

    if (bind(port, (struct sockaddr *)&here, sizeof here))
        return 1;
    for (;;) {
        socklen_t length = sizeof from;
        ssize_t got = recvfrom(port, data, sizeof data, 0, (struct sockaddr *)&from, &length);
        if (got >= 0)
            sendto(port, data, got, 0, (struct sockaddr *)&from, length);
    }
}
